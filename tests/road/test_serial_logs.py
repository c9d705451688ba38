"""End-to-end tests of serial logs, with a control plane and an agent with a simulated host."""

from tests.road.conftest import Site


def test_serial_log_of_an_active_allocation_comes_from_its_node_and_has_the_output_of_both_boots(
    site: Site,
) -> None:
    allocation = site.create()
    site.await_state(allocation, "active")
    client = site.plane.client()
    log = client.get(f"/allocations/{allocation}/serial-log").json()
    assert log["text"] == f"Booting image lab-guest\r\n{allocation} login: \r\n"
    assert (log["node_id"], log["kept_bytes"], log["truncated"]) == ("sim-a", len(log["text"]), False)
    assert client.post(f"/allocations/{allocation}/stop").is_success
    site.await_state(allocation, "stopped")
    assert client.get(f"/allocations/{allocation}/serial-log").json()["text"] == log["text"]
    assert client.post(f"/allocations/{allocation}/start").is_success
    site.await_state(allocation, "active")
    again = client.get(f"/allocations/{allocation}/serial-log", params={"tail": 3}).json()
    assert again["text"] == f"{allocation} login: \r\n{log['text']}"
