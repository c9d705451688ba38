"""An agent that was killed, or that the control plane was away from, finds out what changed and touches nothing
else.
"""

import json
import signal
from pathlib import Path

import redis

from tests.road.conftest import Site
from tests.waiting import until


def fence(site: Site, allocation: str) -> Path:
    index = site.show(allocation)["slots"][0]["slot_index"]
    return site.node.host_file.parent / "agent" / "fence" / f"slot-{index}.json"


def machines_started(site: Site) -> int:
    starts: dict[str, int] = json.loads(site.node.host_file.read_text())["starts"]
    return sum(starts.values())


def test_an_agent_that_was_killed_goes_on_where_orders_changed_and_leaves_the_rest(site: Site) -> None:
    staying, leaving = site.create(), site.create()
    for allocation in (staying, leaving):
        site.await_state(allocation, "active")
    stays = fence(site, staying)
    until(lambda: '"told":false' not in stays.read_text(), "what was said is noted")
    until(lambda: '"address":null' not in stays.read_text(), "its address was seen")
    site.node.agent.send(signal.SIGKILL)
    before, told = stays.stat().st_ino, len(site.story(staying))
    assert site.plane.client().delete(f"/allocations/{leaving}").is_success
    # The queue is lost with its orders: what changed comes by comparing alone, and is sent again besides.
    with redis.Redis.from_url(site.plane.redis.url) as queues:
        queues.flushall()
    site.node.agent.start()
    site.await_state(leaving, "released")
    assert site.show(staying)["state"] == "active"
    assert len(site.story(staying)) == told, "nothing happened to it"
    assert stays.stat().st_ino == before, "its fence was not written"
    assert machines_started(site) == 2


def test_an_agent_that_was_stopped_for_some_beats_compares_when_it_goes_on(site: Site) -> None:
    allocation = site.create()
    site.await_state(allocation, "active")
    site.node.agent.send(signal.SIGSTOP)
    silence = "select clock_timestamp() - seen_at > interval '4 s' from work.node_seen"
    until(lambda: site.plane.rows(silence) == [(True,)], "some beats were missed")
    site.node.agent.send(signal.SIGCONT)
    until(lambda: "was_cut_off" in site.node.agent.log.read_text(), "the agent knows that it was cut off")
    until(lambda: site.node.agent.log.read_text().count('"resynced"') >= 2, "it compared again")
    assert site.show(allocation)["state"] == "active"
    assert machines_started(site) == 1
