"""Existing allocations while the catalogue changes: none of them is affected."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from events.values import MAX_SLOTS
from tests import matrix, torture
from tests.projections.plane_requests import NAMES, rebuild, verify
from tests.road.conftest import KEY, SimulatedNode, start_node
from tests.servers.plane import RunningPlane
from tests.waiting import until

SKU: Final = {"vcpus": 1, "memory_mib": 100, "rate_mbit": 10}
IMAGE: Final = {"format": "kernel"}
WAIT_SECONDS: Final = 120.0
TIMEOUT_SECONDS: Final = 900 if matrix.is_full() else 120


class Catalogue:
    """A SKU and an image, both named `varying`, which a thread publishes and retires while a test runs."""

    def __init__(self, plane: RunningPlane) -> None:
        self._plane = plane
        with plane.client() as client:
            assert client.post("/skus", json={"name": "varying", **SKU}).status_code == 201
            assert client.post("/images", json={"name": "varying", **IMAGE}).status_code == 201

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Publish and retire further versions of the SKU and the image in a thread for the duration of the context."""
        stop, failures = threading.Event(), list[str]()
        thread = threading.Thread(target=self._change, args=(stop, failures))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert failures == []

    def _change(self, stop: threading.Event, failures: list[str]) -> None:
        number = 0
        with self._plane.client() as client:
            while not stop.is_set() or number < 2:
                number += 1
                size = {**SKU, "memory_mib": 32 + number % 64, "rate_mbit": 11 + number, "vcpus": 1}
                check = {"port": 1024 + number % 512, "banner": f"{number} "}
                answers = [
                    client.put("/skus/varying", json=size),
                    client.put("/images/varying", json={**IMAGE, "readiness": check}),
                    client.post("/skus/varying/retire", json={"reason": "test"}),
                    client.post("/images/varying/retire", json={"reason": "test"}),
                ]
                failures += [each.text for each in answers if not each.is_success]


def machines(nodes: list[SimulatedNode]) -> list[dict[str, Any]]:
    """Return the virtual machines (libvirt domains) on the simulated hosts."""
    return [domain for node in nodes for domain in json.loads(node.host_file.read_text())["domains"]]


def rates(nodes: list[SimulatedNode]) -> set[int]:
    """Return the rates, in kbit/s, of all OpenFlow meters on the simulated hosts."""
    return {
        each["meter"]["rate_kbps"]
        for node in nodes
        for each in json.loads(node.host_file.read_text())["meters"]
    }


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_allocations_keep_their_sku_and_image_while_both_are_changed_and_retired(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    number, client = torture.count(200, usual_share=25), running_plane.client()
    catalogue = Catalogue(running_plane)
    slots = [{"index": index, "vcpus": 1, "memory_mib": 100} for index in range(min(number, MAX_SLOTS))]
    image = {"name": "varying"}

    def shown() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.get("/allocations", params={"limit": 500}).json()["items"]
        return found

    def await_state(state: str, ids: set[str]) -> None:
        until(
            lambda: {each["id"] for each in shown() if each["state"] == state} >= ids,
            f"{len(ids)} allocations are {state}",
            WAIT_SECONDS,
        )

    def free() -> int:
        listed = client.get("/slots", params={"limit": 500}).json()["items"]
        return sum(each["state"] == "free" and each["blocked_by"] is None for each in listed)

    with ExitStack() as ends:
        nodes = list[SimulatedNode]()
        while len(nodes) * len(slots) < number:
            name = f"sim-{len(nodes)}"
            nodes.append(start_node(running_plane, tmp_path / name, name, 0.05, slots=slots, images=[image]))
            ends.callback(nodes[-1].agent.stop)
        wanted = len(nodes) * len(slots)
        until(
            lambda: len(client.get("/slots", params={"limit": 500}).json()["items"]) == wanted,
            f"{wanted} slots are discovered",
        )
        for slot in client.get("/slots", params={"limit": 500}).json()["items"]:
            assert client.post(
                f"/nodes/{slot['node_id']}/slots/{slot['id'].partition('/')[2]}/approve"
            ).is_success
        until(lambda: free() == wanted, f"{wanted} slots are free", WAIT_SECONDS)

        body = {"sku": "varying", "image": "varying", "ssh_authorized_keys": [KEY]}
        created = [client.post("/allocations", json=body) for _ in range(number)]
        assert [each.text for each in created if each.status_code != 202] == []
        ids = {each.json()["id"] for each in created}
        await_state("active", ids)
        assert rates(nodes) == {10_000}
        half = set(sorted(ids)[: number // 2])
        with catalogue.changing():
            for allocation in half:
                assert client.post(f"/allocations/{allocation}/stop").is_success
            await_state("stopped", half)
            rebuild(running_plane, *NAMES)
            for allocation in half:
                assert client.post(f"/allocations/{allocation}/start").is_success
            for node in nodes:
                node.agent.send(signal.SIGKILL)
            for node in nodes:
                node.agent.stop()
                node.agent.start()
            await_state("active", ids)

        assert {(each["sku_version"], each["image_version"]) for each in shown()} == {(1, 1)}
        assert rates(nodes) == {10_000}
        assert len(machines(nodes)) == number
        assert {each["guest"]["memory_mib"] for each in machines(nodes)} == {100}
        assert client.get("/parked").json()["items"] == []
        assert running_plane.rows("select 1 from ledger.event where type like 'order.refused%'") == []
        assert verify(running_plane)["state"] == "equal"
        refused = client.post("/allocations", json=body)
        assert refused.status_code == 409
        assert {each["code"] for each in refused.json()["reasons"]} == {"sku_retired", "image_retired"}
