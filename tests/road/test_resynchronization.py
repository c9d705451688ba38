"""Tests of an agent that was killed or cut off: it detects which orders changed and leaves everything
else unchanged.
"""

import json
import signal
from pathlib import Path

import redis

from tests.road.conftest import Site
from tests.waiting import until


def fence_file(site: Site, allocation: str) -> Path:
    index = site.show(allocation)["slots"][0]["slot_index"]
    return site.node.host_file.parent / "agent" / "fence" / f"slot-{index}.json"


def machines_started(site: Site) -> int:
    starts: dict[str, int] = json.loads(site.node.host_file.read_text())["starts"]
    return sum(starts.values())


def test_restarted_agent_applies_changed_orders_and_leaves_other_slices_unchanged(site: Site) -> None:
    staying, leaving = site.create(), site.create()
    for allocation in (staying, leaving):
        site.await_state(allocation, "active")
    stays = fence_file(site, staying)
    until(
        lambda: '"reported":false' not in stays.read_text(), "the fence records that the state was reported"
    )
    until(lambda: '"address":null' not in stays.read_text(), "the fence records the address")
    site.node.agent.send(signal.SIGKILL)
    before, event_count = stays.stat().st_ino, len(site.timeline(staying))
    assert site.plane.client().delete(f"/allocations/{leaving}").is_success
    # The queue loses its orders: the agent gets the change by comparing desired states, and the order is sent again.
    with redis.Redis.from_url(site.plane.redis.url) as queues:
        queues.flushall()
    site.node.agent.start()
    site.await_state(leaving, "released")
    assert site.show(staying)["state"] == "active"
    assert len(site.timeline(staying)) == event_count, "the staying allocation has new events"
    assert stays.stat().st_ino == before, "the fence of the staying slice was rewritten"
    assert machines_started(site) == 2


def test_agent_stopped_for_several_heartbeats_compares_its_slots_with_their_orders_when_continued(
    site: Site,
) -> None:
    allocation = site.create()
    site.await_state(allocation, "active")
    site.node.agent.send(signal.SIGSTOP)
    silence = "select clock_timestamp() - seen_at > interval '4 s' from work.node_seen"
    until(lambda: site.plane.rows(silence) == [(True,)], "several heartbeats were missed")
    site.node.agent.send(signal.SIGCONT)
    until(
        lambda: "control_plane_contact_resumed" in site.node.agent.log.read_text(),
        "the agent has detected that it was cut off",
    )
    until(
        lambda: site.node.agent.log.read_text().count('"desired_state_fetched"') >= 2,
        "the agent has compared its slots again",
    )
    assert site.show(allocation)["state"] == "active"
    assert machines_started(site) == 1
