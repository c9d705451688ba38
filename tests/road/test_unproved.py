"""A slot of which its node still finds something is offered to nobody, and the API says why (ALC-11).

Another program leaves a machine with the slot's card on the node, after the agent's last step of a release and before
its look, while the agent is dead: nobody but that program may take it away.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from node_agent.lab.simulated.host import State
from node_agent.machine_plans import FoundDomain
from tests.road.conftest import KEY, Site, a_site
from tests.servers.plane import RunningPlane
from tests.waiting import until

STRANGER: Final = UUID("0190f7a0-0000-7000-8000-00000000000f")
BEHIND_THE_LAST_STEP: Final = "agent.link.delete.after"


@dataclass
class Unproved:
    """A site with a slot that is withheld, and one that is free."""

    site: Site
    released: str
    slot: dict[str, Any]

    def now(self) -> dict[str, Any]:
        """The slot as the API shows it."""
        shown = self.site.plane.client().get("/slots").json()["items"]
        return next(each for each in shown if each["index"] == self.slot["slot_index"])

    def ask(self, slots: int) -> int:
        body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], "slot_count": slots}
        answer = self.site.plane.client().post("/allocations", json=body)
        if answer.status_code != 202:
            assert [each["code"] for each in answer.json()["reasons"]] == ["no_capacity"]
        return answer.status_code


def disturb(site: Site, change: Callable[[State], None]) -> None:
    """Change the host while no agent is there to be surprised by its own file."""
    state = msgspec.json.decode(site.node.host_file.read_bytes(), type=State)
    change(state)
    site.node.host_file.write_bytes(msgspec.json.encode(state, order="deterministic"))


def die_at(site: Site, point: str) -> None:
    """Have the agent started again, to die there."""
    site.node.agent.send(SIGKILL)
    site.node.agent.environment = {"SLICEPLANE_FAILPOINTS": point}
    site.node.agent.start()


@pytest.fixture
def unproved(running_plane: RunningPlane, tmp_path: Path) -> Iterator[Unproved]:
    with a_site(running_plane, tmp_path) as site:
        allocation = site.create()
        site.await_state(allocation, "active")
        [slot] = site.show(allocation)["slots"]
        die_at(site, BEHIND_THE_LAST_STEP)
        assert site.plane.client().delete(f"/allocations/{allocation}").is_success
        until(lambda: site.node.agent.status == -SIGKILL, "the agent died behind its last step")

        def plant(state: State) -> None:
            assert (state.domains, state.taps, state.ports) == ([], [], [])
            cards = (slot["mac_address"], "vnet7")
            state.domains.append(FoundDomain("stranger", STRANGER, "running", None, cards))

        disturb(site, plant)
        site.node.agent.environment = {}
        site.node.agent.start()
        made = Unproved(site, allocation, slot)
        until(lambda: made.now()["state"] == "withheld", "the slot is withheld")
        yield made


def test_it_is_withheld_with_what_was_found_and_is_offered_to_nobody(unproved: Unproved) -> None:
    site = unproved.site
    assert unproved.now()["reason"]["code"] == "absence_not_proved"
    told = [event for event in site.story(unproved.released) if event["type"] == "slot.withheld"]
    assert [event["data"]["leftovers"] for event in told] == [[f"domain stranger ({STRANGER}, running)"]]
    assert site.show(unproved.released)["state"] == "releasing"
    assert unproved.ask(slots=2) == 409
    taken = site.create()
    site.await_state(taken, "active")
    assert site.show(taken)["slots"][0]["slot_id"] != unproved.slot["slot_id"]
    assert unproved.ask(slots=1) == 409


def test_it_is_free_once_a_later_look_finds_nothing(unproved: Unproved) -> None:
    site = unproved.site
    site.node.agent.send(SIGKILL)
    disturb(site, lambda state: state.domains.clear())
    site.node.agent.start()
    site.await_state(unproved.released, "released")
    assert unproved.now()["state"] == "free"
    both = site.create(slot_count=2)
    site.await_state(both, "active")


def test_it_is_free_once_somebody_breaks_the_glass(unproved: Unproved) -> None:
    site, index = unproved.site, unproved.slot["slot_index"]
    client = site.plane.client()
    broken = client.post(f"/nodes/sim-a/slots/{index}/break-glass", json={"why": "the stranger is known"})
    assert (broken.status_code, broken.json()["state"]) == (200, "free")
    assert site.show(unproved.released)["state"] == "released"
    both = site.create(slot_count=2)
    site.await_state(both, "active")
