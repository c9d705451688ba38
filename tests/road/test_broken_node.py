"""Tests of a node with a hypervisor that refuses every machine start: its allocations run on another node, and the node
is excluded from placement.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

import pytest

from node_agent.lab.leaks.snapshot import differences
from node_agent.lab.simulated.host import State
from tests.road.conftest import SimulatedNode, Site, running_site, start_node
from tests.road.test_quarantined_slot import disturb
from tests.servers.plane import RunningPlane
from tests.waiting import until

FAULT: Final = "could not access KVM kernel module: Permission denied"
SECOND_NODE_SLOTS: Final = [{"index": index, "vcpus": 1, "memory_mib": 96} for index in range(4)]


@dataclass
class TwoNodes:
    """Control plane with two nodes. A test can break the first node. The second node has more slots, so that placement
    prefers the first.
    """

    site: Site
    second: SimulatedNode

    def break_first(self, reason: str | None) -> None:
        """Make the first node's hypervisor refuse every machine start with this reason, or accept machine starts again
        if the reason is None.
        """

        def change(state: State) -> None:
            state.refuses_starts = reason

        self.site.node.agent.send(SIGKILL)
        until(lambda: self.site.node.agent.status == -SIGKILL, "the agent is dead")
        disturb(self.site, change)
        rows, log = self.site.plane.rows, self.site.node.agent.log
        started = log.read_text().count("agent_started")
        self.site.node.agent.start()
        until(
            lambda: log.read_text().count("agent_started") > started, "the new agent has compared all slots"
        )
        # The last heartbeat of the dead agent may have been recorded after its death.
        [(started_at,)] = rows("select clock_timestamp()")
        since = "select 1 from work.node_seen where node_id = 'sim-a' and resynced and seen_at > %(since)s"
        until(
            lambda: bool(rows(since, since=started_at)), "the control plane has a heartbeat of the new agent"
        )

    def first(self) -> dict[str, Any]:
        return dict(self.site.plane.client().get("/nodes/sim-a").json())

    def node_ids(self, allocation: str) -> list[str]:
        return [each["node_id"] for each in self.site.show(allocation)["slots"]]

    def first_is_free(self) -> bool:
        listed = self.site.plane.client().get("/slots", params={"node": "sim-a"}).json()["items"]
        return {each["state"] for each in listed} == {"free"}


@pytest.fixture
def nodes(emptied_plane: RunningPlane, tmp_path: Path) -> Iterator[TwoNodes]:
    with running_site(emptied_plane, tmp_path) as site:
        second = start_node(emptied_plane, tmp_path / "sim-b", "sim-b", slots=SECOND_NODE_SLOTS)
        try:
            client = emptied_plane.client()
            listed = {"node": "sim-b"}
            until(
                lambda: len(client.get("/slots", params=listed).json()["items"]) == len(SECOND_NODE_SLOTS),
                "the second node's slots are discovered",
            )
            for index in range(len(SECOND_NODE_SLOTS)):
                assert client.post(f"/nodes/sim-b/slots/{index}/approve").is_success
            until(
                lambda: client.get("/nodes/sim-b").json()["state"] == "enrolled",
                "the second node is enrolled",
            )
            yield TwoNodes(site, second)
        finally:
            second.agent.stop()


def test_node_on_which_no_machine_starts_gets_no_allocation_until_it_is_repaired_and_readmitted(
    nodes: TwoNodes,
) -> None:
    site, before = nodes.site, nodes.site.node.snapshot()
    nodes.break_first(FAULT)
    for _ in range(3):
        allocation = site.create()
        site.await_state(allocation, "active")
        assert nodes.node_ids(allocation) == ["sim-b"]
        assert site.show(allocation)["replaced"]["reason"]["code"] == "step_refused"
        until(nodes.first_is_free, "the first node has reported its slots as empty")

    broken = nodes.first()
    assert (broken["blocked_by"], len(broken["failures"])) == ("bring_ups_failed", 3)
    assert FAULT in broken["excluded"]["message"]
    assert differences(before, site.node.snapshot()) == []
    fourth = site.create()
    site.await_state(fourth, "active")
    assert (nodes.node_ids(fourth), site.show(fourth)["replaced"]) == (["sim-b"], None)

    nodes.break_first(None)
    reason = {"reason": "the module's permissions were repaired"}
    assert site.plane.client().post("/nodes/sim-a/readmit", json=reason).is_success
    back = site.create(slot_count=2)
    site.await_state(back, "active")
    assert nodes.node_ids(back) == ["sim-a", "sim-a"]


def test_allocation_on_a_broken_node_fails_with_the_nodes_fault_and_the_lack_of_another_node_as_reason(
    site: Site,
) -> None:
    only = TwoNodes(site, site.node)
    only.break_first(FAULT)
    allocation = site.create()
    site.await_state(allocation, "failed")
    reason = site.show(allocation)["reason"]
    assert reason["code"] == "step_refused"
    assert FAULT in reason["message"]
    assert "the allocation was not placed on another node: no schedulable node" in reason["message"]
    until(only.first_is_free, "the slot is free")
