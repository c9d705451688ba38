"""Test of the trace of an allocation: from its request through the dispatcher to the node, and back."""

import json

import pytest

from tests.road.conftest import KEY, Site
from tests.waiting import until


def test_allocation_has_one_trace_from_its_requests_to_the_reports_of_its_node(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}
    answer = site.plane.client().post("/allocations", json=body)
    allocation, request = answer.json()["id"], answer.headers["x-request-id"]
    trace = request.removeprefix("req-")
    assert answer.headers["traceparent"] == f"00-{trace}-{trace[16:]}-01"
    site.await_state(allocation, "active")

    client = site.plane.client(traceparent=answer.headers["traceparent"])
    refused = client.delete(f"/allocations/{allocation}", headers={"If-Match": '"0-0"'})
    assert refused.status_code == 412
    releasing = client.delete(f"/allocations/{allocation}")
    assert releasing.headers["x-request-id"] != request
    site.await_state(allocation, "released")
    until(lambda: site.timeline(allocation)[-1]["type"] == "slot.released", "the timeline is projected")

    events = {event["type"]: event for event in site.timeline(allocation)}
    traces = {name: event["trace_context"].split("-")[1] for name, event in events.items()}
    assert traces == dict.fromkeys(events, trace)
    parents = {name: event["trace_context"].split("-")[2] for name, event in events.items()}
    tasks = {
        kind: json.loads(order) for kind, order in site.plane.rows('select kind, "order" from work.task')
    }
    # The parent of each is its direct cause.
    release_id = releasing.headers["x-request-id"].removeprefix("req-")
    assert parents["allocation.requested"] == parents["allocation.placed"] == trace[16:]
    assert parents["allocation.releasing"] == release_id[16:]
    for kind, cause in (("slice.apply", "allocation.placed"), ("slice.remove", "allocation.releasing")):
        half = events[cause]["id"].replace("-", "")[16:]
        assert tasks[kind]["trace_context"] == f"00-{trace}-{half}-01"
    reported = [parents[name] for name, event in events.items() if event["actor"] == "node:sim-a"]
    assert not {*reported} & {trace[16:], release_id[16:]}
    assert len({parents["allocation.slice_starting"], parents["allocation.slice_ready"]}) == 2
    assert parents["allocation.slice_ready"] == parents["allocation.activated"]

    program = [line for line in capfd.readouterr().err.splitlines() if trace in line]
    agent = [line for line in site.node.agent.log.read_text().splitlines() if trace in line]
    for lines, event in (
        (program, "request_refused"),
        (program, "tasks_added_to_node_queues"),
        (agent, "order_accepted_for_execution"),
        (agent, "report_spooled"),
    ):
        assert any(event in line for line in lines), event
    assert all("trace_id" in line for line in (*program, *agent))
