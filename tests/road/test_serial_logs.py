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


def test_serial_log_of_a_released_allocation_is_readable_until_the_next_slice_of_its_slot_has_ended(
    site: Site,
) -> None:
    client = site.plane.client()

    def run_in_first_slot() -> str:
        allocation = site.create()
        site.await_state(allocation, "active")
        assert [each["slot_id"] for each in site.show(allocation)["slots"]] == ["sim-a/0"]
        return allocation

    def release(allocation: str) -> None:
        assert client.delete(f"/allocations/{allocation}").is_success
        site.await_state(allocation, "released")
        site.await_placeable(2)

    first = run_in_first_slot()
    release(first)
    log = client.get(f"/allocations/{first}/serial-log").json()
    assert log["text"] == f"Booting image lab-guest\r\n{first} login: \r\n"
    assert (log["slot_id"], log["truncated"]) == ("sim-a/0", False)
    second = run_in_first_slot()
    assert client.get(f"/allocations/{first}/serial-log").json() == log
    assert first not in client.get(f"/allocations/{second}/serial-log").json()["text"]
    release(second)
    refused = client.get(f"/allocations/{first}/serial-log")
    assert [each["code"] for each in refused.json()["reasons"]] == ["serial_log_not_kept"]
    assert second in client.get(f"/allocations/{second}/serial-log").json()["text"]
