"""Tests of a slot on which its node still finds resources after a release: the slot is quarantined, and the API shows
the reason (ALC-11).

Another program defines a virtual machine with the slot's network card on the node, after the agent's last step of a
release and before its inspection, while the agent is dead. The agent must not remove a foreign machine.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from events.values import AllocationId
from node_agent.aspects.machine_plans import FoundDomain
from node_agent.lab.simulated.host import State
from tests.road.conftest import KEY, Site, running_site
from tests.road.test_deadlines import view_after_deadline
from tests.servers.plane import RunningPlane
from tests.waiting import until

FOREIGN: Final = UUID("0190f7a0-0000-7000-8000-00000000000f")
AFTER_LAST_STEP: Final = "agent.link.delete.after"


@dataclass
class QuarantinedSite:
    """Control plane with a node that has one quarantined and one free slot."""

    site: Site
    released: str
    slot: dict[str, Any]

    def now(self) -> dict[str, Any]:
        """Return the quarantined slot as the API shows it."""
        shown = self.site.plane.client().get("/slots").json()["items"]
        return next(each for each in shown if each["index"] == self.slot["slot_index"])

    def request(self, slots: int) -> list[str]:
        """Request an allocation, and return the codes of its refusal; none if it is accepted."""
        body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], "slot_count": slots}
        answer = self.site.plane.client().post("/allocations", json=body)
        return [] if answer.status_code == 202 else [each["code"] for each in answer.json()["reasons"]]


def disturb(site: Site, change: Callable[[State], None]) -> None:
    """Change the file of the simulated host. The agent must not run meanwhile, because it does not read changes of this
    file.
    """
    state = msgspec.json.decode(site.node.host_file.read_bytes(), type=State)
    change(state)
    site.node.host_file.write_bytes(msgspec.json.encode(state, order="deterministic"))


def die_at(site: Site, point: str) -> None:
    """Restart the agent so that it dies at the failpoint."""
    site.node.agent.send(SIGKILL)
    site.node.agent.environment = {"SLICEPLANE_FAILPOINTS": point}
    site.node.agent.start()


@pytest.fixture
def quarantined(emptied_plane: RunningPlane, tmp_path: Path) -> Iterator[QuarantinedSite]:
    with running_site(emptied_plane, tmp_path) as site:
        allocation = site.create()
        site.await_state(allocation, "active")
        [slot] = site.show(allocation)["slots"]
        die_at(site, AFTER_LAST_STEP)
        assert site.plane.client().delete(f"/allocations/{allocation}").is_success
        until(lambda: site.node.agent.status == -SIGKILL, "the agent was killed after its last step")

        def plant(state: State) -> None:
            assert (state.domains, state.taps, state.ports) == ([], [], [])
            cards = (slot["mac_address"], "vnet7")
            state.domains.append(FoundDomain("foreign", FOREIGN, "running", None, cards))

        disturb(site, plant)
        site.node.agent.environment = {}
        site.node.agent.start()
        made = QuarantinedSite(site, allocation, slot)
        until(lambda: made.now()["state"] == "quarantined", "the slot is quarantined")
        site.await_placeable(1)
        yield made


def test_slot_with_leftovers_after_a_release_is_quarantined_with_their_names_and_is_not_allocated(
    quarantined: QuarantinedSite,
) -> None:
    site = quarantined.site
    assert quarantined.now()["reason"]["code"] == "absence_not_proved"
    events = [event for event in site.timeline(quarantined.released) if event["type"] == "slot.quarantined"]
    assert [event["data"]["leftovers"] for event in events] == [[f"domain foreign ({FOREIGN}, running)"]]
    assert site.show(quarantined.released)["state"] == "releasing"
    assert quarantined.request(slots=2) == ["no_healthy_slot"]
    taken = site.create()
    site.await_state(taken, "active")
    assert site.show(taken)["slots"][0]["slot_id"] != quarantined.slot["slot_id"]
    assert quarantined.request(slots=1) == ["no_capacity"]

    overdue = asyncio.run(view_after_deadline(site.plane, AllocationId(quarantined.released)))
    assert overdue["state"] == "releasing"
    left = {"slot_id": quarantined.slot["slot_id"], "reason": quarantined.now()["reason"]}
    assert overdue["release_overdue"]["remaining"] == [left]
    overdue_events = [
        each["data"]["remaining"]
        for each in site.timeline(quarantined.released)
        if each["type"] == "allocation.release_overdue"
    ]
    assert overdue_events == [[left]]


def test_quarantined_slot_becomes_free_once_a_later_inspection_finds_nothing(
    quarantined: QuarantinedSite,
) -> None:
    site = quarantined.site
    site.node.agent.send(SIGKILL)
    disturb(site, lambda state: state.domains.clear())
    site.node.agent.start()
    site.await_state(quarantined.released, "released")
    assert quarantined.now()["state"] == "free"
    site.await_placeable(2)
    both = site.create(slot_count=2)
    site.await_state(both, "active")


def test_quarantined_slot_becomes_free_by_a_force_release(quarantined: QuarantinedSite) -> None:
    site, index = quarantined.site, quarantined.slot["slot_index"]
    client = site.plane.client()
    response = client.post(
        f"/nodes/sim-a/slots/{index}/force-release", json={"reason": "the foreign machine is harmless"}
    )
    assert (response.status_code, response.json()["state"]) == (200, "free")
    assert site.show(quarantined.released)["state"] == "released"
    site.await_placeable(2)
    both = site.create(slot_count=2)
    site.await_state(both, "active")
