"""One node adds a bounded number of events, whatever it reports, and no important report is lost (P20)."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from control_plane.api.requests.report_gate import IN_PROGRESS
from control_plane.reports.intake import KEPT_SPOOLS
from control_plane.work import report_budget
from deploy.embedded.postgres import PostgresServer
from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Timetable
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from tasks.drift import TimedEvidence
from tasks.reports import DriftRepaired
from tests.agent.credential_client import client_of
from tests.agent.orders import NODE
from tests.api.node import (
    BEAT,
    CREDENTIAL,
    SLOT,
    admit,
    allocate,
    as_node,
    batch,
    enrol,
    register_node,
    renew,
    renewal,
    survey,
)
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

BURST, PER_MINUTE = 60, 120
MANY = 100


@pytest.fixture
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """Control plane with a small report budget per node, which refills within a short time."""
    with running(postgres_server, report_burst=BURST, reports_per_minute=PER_MINUTE) as made:
        yield made


@pytest.fixture
def short_quiet_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the throttling of a node one second after it last exceeded its report budget."""
    monkeypatch.setattr(report_budget, "QUIET", timedelta(seconds=1))


def events(plane: RunningPlane, *types: str) -> int:
    [(count,)] = plane.rows("select count(*) from ledger.event where type = any(%(types)s)", types=[*types])
    return int(count)


def post_changing_descriptions(plane: RunningPlane, name: str, spool: str, count: int) -> list[int]:
    """Post `count` descriptions with different hostnames, one per request, and return the status of each request."""
    node, sequence, statuses = as_node(plane, name), 1, list[int]()
    for number in range(count):
        report = batch(spool, (sequence, survey(hostname=f"host-{number}")))
        answer = node.post("/reports", json=report)
        statuses.append(answer.status_code)
        sequence += answer.is_success
    return statuses


def test_survey_reports_of_a_frequently_changing_host_are_merged_and_the_last_one_is_recorded(
    postgres_server: PostgresServer,
) -> None:
    with running(postgres_server, report_burst=50, reports_per_minute=12) as plane:
        enrol(plane, "n1", register_node(plane, "n1"))
        before, began = plane.last_position(), time.monotonic()
        statuses = post_changing_descriptions(plane, "n1", str(uuid4()), MANY)
        assert set(statuses) == {200, 429}
        last = max(number for number, status in enumerate(statuses) if status == 200)
        client = plane.client()
        until(
            lambda: client.get("/nodes/n1").json()["hostname"] == f"host-{last}",
            "the last accepted description is recorded",
        )
        # A tenth of the burst at once, what the budget regained since, and one merged description every ten seconds.
        allowed = 5 + 0.3 * (time.monotonic() - began) + 3
        assert events(plane, "node.inspected") <= allowed
        assert events(plane, "node.inspected") < statuses.count(200) / 2
        assert events(plane, "node.reports_throttled") == 1
        assert plane.last_position() - before <= allowed + 1


def test_throttling_of_reports_is_recorded_once_when_it_begins_and_once_when_it_ends(
    plane: RunningPlane, short_quiet_period: None
) -> None:
    enrol(plane, "n1", register_node(plane, "n1"))
    descriptions = [(number + 1, survey(hostname=f"host-{number}")) for number in range(BURST // 4)]
    # In one request, so that the budget regains nothing between the reports, however busy the machine is.
    assert as_node(plane, "n1").post("/reports", json=batch(str(uuid4()), *descriptions)).is_success
    until(lambda: events(plane, "node.reports_resumed") == 1, "throttling has ended")
    throttle_events = plane.rows(
        "select type, data::jsonb from ledger.event where type like 'node.reports%' order by 1"
    )
    [(_, resumed), (_, throttled)] = throttle_events
    assert (throttled["node_id"], throttled["burst"], throttled["per_minute"]) == ("n1", BURST, PER_MINUTE)
    assert (resumed["since"], resumed["refused"]) == (throttled["since"], 0)
    assert events(plane, "node.inspected") + resumed["merged"] == BURST // 4
    shown = plane.client().get("/nodes/n1").json()
    assert (shown["reports_throttled_at"], shown["hostname"]) == (None, f"host-{BURST // 4 - 1}")
    between = plane.rows("select position from ledger.event where type = 'node.reports_throttled'")[0][0]
    past = plane.client().get(f"/nodes/n1?at=position:{between}").json()
    assert past["reports_throttled_at"] == throttled["since"]


def repaired(number: int) -> dict[str, Any]:
    seen = {
        "kind": "node.forwarding",
        "desired": f"w{number}",
        "observed": "f",
        "since": "2026-03-01T12:00:00Z",
    }
    return {"kind": "drift.repaired", "slot": None, "drift": [seen]}


def test_report_beyond_the_budget_of_its_node_is_refused_with_retry_after_and_accepted_later_in_order(
    plane: RunningPlane,
) -> None:
    node, spool = admit(plane, "n1"), str(uuid4())
    bodies, taken = [(number, repaired(number)) for number in range(1, 1001)], 0
    while (answer := node.post("/reports", json=batch(spool, *bodies[taken : taken + 10]))).is_success:
        taken = answer.json()["sequence"]
        assert taken < len(bodies), "the budget is exhausted at some point"
    assert taken >= BURST * 9 / 10
    assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (429, "reports_throttled")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert plane.client().get("/nodes/n1").json()["reports_throttled_at"] is not None
    enough = taken + 5

    def remaining_are_accepted() -> bool:
        nonlocal taken
        answer = node.post("/reports", json=batch(spool, *bodies[taken:enough]))
        assert answer.status_code in (200, 429)
        taken = answer.json()["sequence"] if answer.is_success else taken
        return taken == enough

    until(remaining_are_accepted, "the budget allows the remaining reports")
    assert recorded_repairs(plane) == [f"w{number}" for number in range(1, enough + 1)]
    assert events(plane, "node.reports_throttled") == 1


def recorded_repairs(plane: RunningPlane) -> list[str]:
    query = "select data::jsonb->'drift'->0->>'desired' from ledger.event where type = 'node.repaired' order by position"
    return [desired for (desired,) in plane.rows(query)]


def test_throttled_agent_delivers_its_spool_in_order(postgres_server: PostgresServer, tmp_path: Path) -> None:
    with running(postgres_server, report_burst=20, reports_per_minute=60) as plane:
        admit(plane, NODE)
        reporter = Reporter(spool := Spool(tmp_path), NodeClock())
        moment, count = datetime.now(UTC), 25
        for number in range(count):
            seen = TimedEvidence(kind="node.forwarding", desired=f"w{number}", observed="f", since=moment)
            reporter.report(DriftRepaired(slot=None, drift=(seen,)))
        with Timetable() as timetable:
            client = client_of(plane.url, CREDENTIAL)
            reporter.start(client, timetable)
            until(lambda: spool.waiting == 0, "all reports are delivered")
            reporter.stop(5)
            client.close()
        assert recorded_repairs(plane) == [f"w{number}" for number in range(count)]
        assert events(plane, "node.reports_throttled") == 1
        [(refused,)] = plane.rows("select refused from work.report_budget ")
        assert 1 <= refused <= 10


def test_reports_of_a_node_are_accepted_while_another_node_floods(plane: RunningPlane) -> None:
    other, spool = admit(plane, "n2"), str(uuid4())
    enrol(plane, "n1", register_node(plane, "n1"))
    with ThreadPoolExecutor(2 * IN_PROGRESS) as pool:
        flood = [
            pool.submit(post_changing_descriptions, plane, "n1", str(uuid4()), MANY // 10)
            for _ in range(2 * IN_PROGRESS)
        ]
        for number in range(1, 6):
            report = batch(spool, (number, survey(hostname=f"calm-{number}")))
            assert other.post("/reports", json=report).status_code == 200
        assert {status for each in flood for status in each.result()} == {200, 429}
    assert plane.client().get("/nodes/n2").json()["hostname"] == "calm-5"
    throttled = "select stream_id from ledger.event where type = 'node.reports_throttled'"
    assert plane.rows(throttled) == [("node-n1",)]


def removal_order_of(plane: RunningPlane, allocation: str) -> str:
    """Wait for the order that removes the allocation's slice, and return its id."""
    query = "select order_id::text from work.task where kind = 'slice.remove' and allocation_id = %(of)s"
    until(lambda: bool(plane.rows(query, of=allocation)), "there is a removal order")
    return str(plane.rows(query, of=allocation)[0][0])


def test_reports_that_complete_orders_do_not_consume_the_report_budget_of_their_node(
    postgres_server: PostgresServer,
) -> None:
    with running(postgres_server, report_burst=20, reports_per_minute=1) as plane:
        node, cycles = admit(plane, "n1"), 4
        for _ in range(cycles):
            slice_ = RunningAllocation(plane, node)
            assert plane.client().delete(f"/allocations/{slice_.id}").is_success
            slice_.report("slice.removed", removal_order_of(plane, slice_.id), absent=["link", "machine"])
        assert events(plane, "allocation.released") == cycles
        by_node = "select count(*) from ledger.event where actor = 'node:n1'"
        assert plane.rows(by_node)[0][0] > 20, "the node added more events than its budget allows"
        assert events(plane, "node.reports_throttled") == 0


def test_node_with_many_spool_incarnations_keeps_a_bounded_number_of_report_cursors(
    plane: RunningPlane,
) -> None:
    enrol(plane, "n1", register_node(plane, "n1"))
    enrol(plane, "n2", register_node(plane, "n2"))
    kept = str(uuid4())
    as_node(plane, "n2").post("/reports", json=batch(kept, (1, survey())))
    node = as_node(plane, "n1")
    newest = [str(uuid4()) for _ in range(3 * KEPT_SPOOLS)]
    for spool in newest:
        assert node.post("/reports", json=batch(spool, (1, survey()))).status_code == 200
    cursors = "select incarnation from work.report_cursor where node_id = %(node)s"
    assert {row for (row,) in plane.rows(cursors, node="n1")} == {
        UUID(each) for each in newest[-KEPT_SPOOLS:]
    }
    assert plane.rows(cursors, node="n2") == [(UUID(kept),)]
    # The cursor of the spool in use is kept: only cursors of older spools are deleted.
    assert node.post("/reports", json=batch(newest[-1], (2, survey()))).json() == {"sequence": 2}


def test_session_renewals_beyond_the_budget_of_a_node_are_refused_and_its_last_session_stays_valid(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_budget, "SESSIONS", 10)
    with running(postgres_server, report_burst=20, reports_per_minute=1) as plane:
        enrol(plane, "n1", register_node(plane, "n1"))
        credential, number = CREDENTIAL, 1
        while (answer := renew(plane, renewal("n1", number, f"c{number}", presented=credential))).is_success:
            credential, number = f"c{number}", number + 1
            assert number <= 20 + 10 + 10
        assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (429, "sessions_throttled")
        assert int(answer.headers["Retry-After"]) >= 1
        assert as_node(plane, "n1", credential).post("/heartbeat", json=BEAT).is_success


def test_survey_report_of_a_node_with_many_slots_does_not_exceed_its_report_budget(
    plane: RunningPlane,
) -> None:
    enrol(plane, "n1", register_node(plane, "n1"))
    found = [{**SLOT, "index": index, "network_device": f"slice{index}"} for index in range(64)]
    node, spool = as_node(plane, "n1"), str(uuid4())
    for number in (1, 2):
        report = batch(spool, (number, survey(slots=found, hostname=f"h{number}")))
        assert node.post("/reports", json=report).is_success
    assert plane.client().get("/nodes/n1").json()["hostname"] == "h2"
    assert events(plane, "node.reports_throttled") == 0


def test_allocation_becomes_active_while_its_node_floods_the_api_with_survey_reports(
    plane: RunningPlane,
) -> None:
    node: httpx.Client = admit(plane, "n1")
    made = allocate(plane).json()
    slot, spool = made["slots"][0], str(uuid4())
    query = "select order_id::text from work.task where node_id = 'n1'"
    until(lambda: bool(plane.rows(query)), "there is an order")
    [(order,)] = plane.rows(query)
    descriptions = [(number, survey(hostname=f"h{number}")) for number in range(1, 13)]
    ready = {
        "kind": "slice.ready",
        "slot_id": slot["slot_id"],
        "allocation_id": made["id"],
        "address": slot["private_ip"],
        "port": 22,
        "banner": "SSH-2.0-x",
    }
    report = batch(spool, *descriptions, (13, ready))
    report["reports"][-1]["order_id"] = order
    assert node.post("/reports", json=report).json() == {"sequence": 13}
    assert plane.client().get(f"/allocations/{made['id']}").json()["state"] == "active"
    until(
        lambda: plane.client().get("/nodes/n1").json()["hostname"] == "h12",
        "the last description is recorded",
    )


def test_repeated_report_request_does_not_consume_the_report_budget_twice(
    postgres_server: PostgresServer,
) -> None:
    with running(postgres_server, report_burst=20, reports_per_minute=1) as plane:
        node, spool = admit(plane, "n1"), str(uuid4())
        report = batch(spool, *((number, repaired(number)) for number in range(1, 6)))
        for _ in range(6):
            assert node.post("/reports", json=report).json() == {"sequence": 5}
        assert events(plane, "node.repaired") == 5
        assert events(plane, "node.reports_throttled") == 0
