"""Tasks over the API: requested, listed, retried and cancelled, with the results that their nodes report."""

import base64
import json
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis

from tests.api.node import allocate, desired_orders, renew, renewal
from tests.api.scripted_node import VERIFIED, ScriptedNode, scripted_node
from tests.api.streams import open_stream
from tests.servers.plane import RunningPlane
from tests.waiting import until

REASON = {"code": "because", "message": "of the test"}


def codes(answer: httpx.Response) -> list[str]:
    return [reason["code"] for reason in answer.json()["reasons"]]


def kind_of(signed: str) -> str:
    """Return the kind of a signed order (RFC 7515: the payload is between the two dots)."""
    payload = signed.split(".")[1]
    sealed = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(sealed["order"]["body"]["kind"])


def wait_for_order(node: ScriptedNode, allocation: str, kind: str) -> dict[str, Any]:
    """Wait until an order of this kind was sent for the allocation, and return the newest such order."""
    until(
        lambda: any(each["kind"] == kind and each["state"] == "sent" for each in node.orders(allocation)),
        kind,
    )
    return next(each for each in node.orders(allocation) if each["kind"] == kind)


def node_with_allocation(emptied_plane: RunningPlane, **fields: object) -> tuple[ScriptedNode, str]:
    node = scripted_node(emptied_plane)
    made = allocate(emptied_plane, **fields)
    assert made.status_code == 202, made.text
    return node, str(made.json()["id"])


def removal_in_progress(emptied_plane: RunningPlane) -> tuple[ScriptedNode, str, dict[str, Any]]:
    node, allocation = node_with_allocation(emptied_plane)
    assert emptied_plane.client().delete(f"/allocations/{allocation}").is_success
    return node, allocation, wait_for_order(node, allocation, "slice.remove")


def test_requested_task_is_done_with_the_result_that_its_node_reports(emptied_plane: RunningPlane) -> None:
    node = scripted_node(emptied_plane)
    answer = node.post("/tasks", kind="node.verify", node_id="n1")
    task = answer.json()["id"]
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/tasks/{task}")
    assert answer.json()["state"] == "due"
    node.await_state(task, "sent")
    node.report("operation.done", operation_id=node.newest_operation(task), result=VERIFIED)
    shown = node.task(task)
    assert (shown["state"], shown["result"], shown["attempt"]) == ("done", VERIFIED, 1)
    assert [each["id"] for each in node.tasks()] == [task]
    events = emptied_plane.client().get("/events", params={"stream": f"task-{task}"}).json()["items"]
    assert [each["type"] for each in events] == ["task.requested", "task.succeeded"]
    assert [each["actor"].partition(":")[0] for each in events] == ["key", "node"]


def test_task_for_a_slot_is_part_of_the_timeline_of_its_allocation(emptied_plane: RunningPlane) -> None:
    node, allocation = node_with_allocation(emptied_plane)
    task = node.request_task("drift.report", slot_id="n1/0")
    assert node.task(task)["allocation_id"] == allocation
    timeline = emptied_plane.client().get(f"/allocations/{allocation}/events").json()["items"]
    assert "task.requested" in [each["type"] for each in timeline]
    assert [kind_of(text) for text in desired_orders(node.node)] == ["slice.apply"], (
        "an operation is not part of the desired state"
    )


def test_task_request_repeated_with_one_idempotency_key_creates_one_task(emptied_plane: RunningPlane) -> None:
    scripted_node(emptied_plane)
    client = emptied_plane.client(**{"Idempotency-Key": "once"})
    answers = [client.post("/tasks", json={"kind": "node.verify", "node_id": "n1"}) for _ in range(2)]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert len(emptied_plane.client().get("/tasks").json()["items"]) <= 1


def test_task_with_a_temporary_failure_is_retried_until_it_fails_permanently(
    emptied_plane: RunningPlane,
) -> None:
    node = scripted_node(emptied_plane)
    task = node.request_task("node.verify", node_id="n1")
    temporary = {"code": "host_unreadable", "message": "the switch did not answer"}
    first = node.newest_operation(task)
    node.report("operation.failed", operation_id=first, reason=temporary)
    shown = node.task(task)
    assert (shown["state"], shown["reason"]) == ("waiting", temporary)
    until(lambda: node.task(task)["attempt"] == 2, "the task is retried")
    assert node.newest_operation(task) != first
    node.report("operation.failed", operation_id=first, reason=temporary)
    assert node.task(task)["attempt"] == 2, "a report about an earlier attempt changes nothing"
    node.report("operation.failed", operation_id=node.newest_operation(task), reason=REASON)
    assert (node.task(task)["state"], node.task(task)["reason"]) == ("failed", REASON)
    assert [each["id"] for each in node.tasks(state="failed")] == [task], "earlier attempts are not listed"
    assert node.post(f"/tasks/{task}/retry").status_code == 202
    until(lambda: node.task(task)["state"] == "sent", "the task is retried on request")
    assert node.task(task)["attempt"] == 3


def test_operation_result_from_another_node_does_not_end_the_task(emptied_plane: RunningPlane) -> None:
    node, other = scripted_node(emptied_plane, "n1"), scripted_node(emptied_plane, "n2")
    task = node.request_task("node.verify", node_id="n1")
    other.report("operation.done", operation_id=node.newest_operation(task), result=VERIFIED)
    other.report("operation.failed", operation_id=str(uuid4()), reason=REASON)
    assert node.task(task)["state"] == "sent"


def test_task_with_a_result_of_another_kind_fails(emptied_plane: RunningPlane) -> None:
    node = scripted_node(emptied_plane)
    task = node.request_task("node.verify", node_id="n1")
    wrong = {"kind": "drift.report", "drift": []}
    node.report("operation.done", operation_id=node.newest_operation(task), result=wrong)
    assert node.task(task)["reason"]["code"] == "wrong_result"


def test_task_that_waits_in_the_queue_is_cancelled_at_once(emptied_plane: RunningPlane) -> None:
    node = scripted_node(emptied_plane)
    task = node.request_task("node.verify", node_id="n1")
    operation = node.newest_operation(task)
    cancelled = node.post(f"/tasks/{task}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    node.report("operation.done", operation_id=operation, result=VERIFIED)
    assert node.task(task)["state"] == "cancelled", "a later result does not change a cancelled task"
    assert codes(node.post(f"/tasks/{task}/cancel")) == ["task_finished"]


def mark_in_flight(plane: RunningPlane, operation: str) -> None:
    """Move the operation in Redis from the node's queue to a live worker, as if an agent had fetched it."""
    with redis.Redis.from_url(plane.redis.url) as admin:
        seconds, micros = admin.time()
        admin.zadd("ctl:n1:workers", {"w": seconds * 1000 + micros // 1000 + 60_000})
        admin.hset("ctl:n1:slices.held", operation, "w")
        admin.lrem("ctl:n1:slices", 1, operation)


def test_task_in_flight_is_cancelled_when_its_node_reports_the_cancellation(
    emptied_plane: RunningPlane,
) -> None:
    node = scripted_node(emptied_plane)
    task = node.request_task("node.verify", node_id="n1")
    operation = node.newest_operation(task)
    mark_in_flight(emptied_plane, operation)
    cancelled = node.post(f"/tasks/{task}/cancel").json()
    assert cancelled["state"] == "sent"
    until(lambda: node.task(task)["cancelling"], "the cancellation is sent to the node")
    node.report(
        "operation.failed", operation_id=operation, reason={"code": "cancelled", "message": "between steps"}
    )
    shown = node.task(task)
    assert (shown["state"], shown["cancelling"]) == ("cancelled", False)
    assert node.post(f"/tasks/{task}/retry").status_code == 202
    until(lambda: node.task(task)["attempt"] == 2, "the task is retried")


def test_task_that_its_node_had_not_started_is_cancelled(emptied_plane: RunningPlane) -> None:
    node = scripted_node(emptied_plane)
    task = node.request_task("node.verify", node_id="n1")
    mark_in_flight(emptied_plane, node.newest_operation(task))
    node.post(f"/tasks/{task}/cancel")
    stop = "select order_id from work.task where kind = 'operation.cancel'"
    until(lambda: len(emptied_plane.rows(stop)) == 1, "the cancellation is sent to the node")
    [(cancel,)] = emptied_plane.rows(stop)
    result = {"kind": "operation.cancel", "was_running": False}
    node.report("operation.done", operation_id=str(cancel), result=result)
    assert node.task(task)["state"] == "cancelled"


def test_list_of_tasks_has_the_order_of_an_allocation_only_if_node_slot_state_and_kind_filters_match_it(
    emptied_plane: RunningPlane,
) -> None:
    node, allocation = node_with_allocation(emptied_plane)
    order = wait_for_order(node, allocation, "slice.apply")
    assert order["slot_id"] == "n1/0"
    assert order["sends"] == 1
    for filters in ({"node": "n1"}, {"slot": "n1/0"}, {"state": "sent"}, {"kind": "slice.apply"}):
        assert [each["id"] for each in node.tasks(**filters)] == [order["id"]], filters
    for filters in ({"node": "n2"}, {"slot": "n1/1"}, {"state": "done"}, {"kind": "slice.remove"}):
        assert node.tasks(**filters) == [], filters


def test_allocation_with_a_cancelled_apply_order_fails_and_its_slice_is_removed(
    emptied_plane: RunningPlane,
) -> None:
    node, allocation = node_with_allocation(emptied_plane)
    order = wait_for_order(node, allocation, "slice.apply")
    cancelled = node.post(f"/tasks/{order['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    shown = emptied_plane.client().get(f"/allocations/{allocation}").json()
    assert (shown["state"], shown["reason"]["code"]) == ("failed", "cancelled")
    wait_for_order(node, allocation, "slice.remove")


def test_cancellation_of_a_removal_is_refused(emptied_plane: RunningPlane) -> None:
    node, _allocation, removal = removal_in_progress(emptied_plane)
    assert codes(node.post(f"/tasks/{removal['id']}/cancel")) == ["removal_not_cancellable"]


@pytest.mark.parametrize(("code", "state"), [("poisoned", "poisoned"), ("wrong_network", "refused")])
def test_removal_that_its_node_refused_can_be_retried(
    emptied_plane: RunningPlane, code: str, state: str
) -> None:
    node, allocation, removal = removal_in_progress(emptied_plane)
    assert codes(node.post(f"/tasks/{removal['id']}/retry")) == ["task_in_progress"]
    reason = {"code": code, "message": "of the test"}
    node.report("order.refused", order_id=removal["id"], slot_id="n1/0", reason=reason)
    shown = node.task(removal["id"])
    assert (shown["state"], shown["reason"]) == (state, reason)
    assert node.post(f"/tasks/{removal['id']}/retry").status_code == 202
    until(lambda: len(node.tasks(kind="slice.remove", state="sent")) == 1, "a new order is sent")
    [retried] = node.tasks(kind="slice.remove", state="sent")
    assert retried["id"] != removal["id"]
    node.report("slice.removed", slot_id="n1/0", allocation_id=allocation, absent=["port"])
    assert emptied_plane.client().get(f"/allocations/{allocation}").json()["state"] == "released"
    assert codes(node.post(f"/tasks/{removal['id']}/retry")) == ["not_awaiting_removal"]


def test_desired_state_of_an_empty_slot_remains_the_removal_of_its_last_slice(
    emptied_plane: RunningPlane,
) -> None:
    """Without the removal order, a node that lost its stored orders would accept an old order from its queue."""
    node, allocation, removal = removal_in_progress(emptied_plane)
    node.report("slice.removed", slot_id="n1/0", allocation_id=allocation, absent=["port"])
    assert emptied_plane.client().get(f"/allocations/{allocation}").json()["state"] == "released"
    done = "update work.task set state = 'done' where order_id = %(order)s returning 1"
    assert emptied_plane.rows(done, order=removal["id"]) == [(1,)], (
        "the order is done, as after a report that names it"
    )
    assert [kind_of(text) for text in desired_orders(node.node)] == ["slice.remove"]


def test_watch_of_an_order_receives_its_refusal_by_the_node(emptied_plane: RunningPlane) -> None:
    node, _allocation, removal = removal_in_progress(emptied_plane)
    reason = {"code": "wrong_network", "message": "of the test"}
    with open_stream(emptied_plane, f"/tasks/{removal['id']}/watch") as stream:
        node.report("order.refused", order_id=removal["id"], slot_id="n1/0", reason=reason)
        assert [event.type for event in stream.take(3)] == [
            "allocation.releasing",
            "slot.releasing",
            "order.refused",
        ]


def test_watch_of_a_task_receives_only_events_of_that_task(emptied_plane: RunningPlane) -> None:
    node = scripted_node(emptied_plane)
    task = node.request_task("node.verify", node_id="n1")
    allocate(emptied_plane)
    with open_stream(emptied_plane, f"/tasks/{task}/watch") as stream:
        node.report("operation.done", operation_id=node.newest_operation(task), result=VERIFIED)
        assert [event.type for event in stream.take(2)] == ["task.requested", "task.succeeded"]


def test_task_of_an_incomplete_removal_shows_the_leftovers(emptied_plane: RunningPlane) -> None:
    node, allocation, removal = removal_in_progress(emptied_plane)
    node._sequence += 1
    body = {
        "kind": "slice.removal_incomplete",
        "slot_id": "n1/0",
        "allocation_id": allocation,
        "leftovers": ["tap tap0"],
    }
    report = {"sequence": node._sequence, "observed_at": "2026-03-01T12:00:00Z", "body": body}
    report["order_id"] = removal["id"]
    node.node.post("/reports", json={"incarnation": node._spool, "reports": [report]})
    shown = node.task(removal["id"])
    assert (shown["state"], shown["reason"]) == ("sent", {"code": "leftovers", "message": "tap tap0"})


def test_retry_of_an_apply_order_in_flight_is_refused(emptied_plane: RunningPlane) -> None:
    node, allocation = node_with_allocation(emptied_plane)
    order = wait_for_order(node, allocation, "slice.apply")
    refused = node.post(f"/tasks/{order['id']}/retry")
    assert refused.status_code == 409
    assert codes(refused) == ["task_in_progress", "not_retriable"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "required"),
        ({"kind": "node.verify"}, 422, "invalid_target"),
        ({"kind": "node.verify", "node_id": "n1", "slot_id": "n1/0"}, 422, "invalid_target"),
        ({"kind": "drift.report", "node_id": "n1"}, 422, "invalid_target"),
        ({"kind": "node.verify", "node_id": "n1", "shell": "rm"}, 422, "unknown_field"),
        ({"kind": "slice.apply", "slot_id": "n1/0"}, 422, "not_requestable"),
        ({"kind": "operation.cancel", "node_id": "n1"}, 422, "unknown_kind"),
        ({"kind": "shell.run", "node_id": "n1"}, 422, "unknown_kind"),
        ({"kind": "node.verify", "node_id": "nowhere"}, 404, "unknown_node"),
        ({"kind": "drift.report", "slot_id": "n1/9"}, 404, "unknown_slot"),
        ({"kind": "drift.report", "slot_id": "n1/0"}, 409, "no_desired_state"),
    ],
)
def test_invalid_task_request_is_refused_with_its_reason(
    shared_node: ScriptedNode, body: dict[str, str], status: int, code: str
) -> None:
    refused = shared_node.plane.client().post("/tasks", json=body)
    assert (refused.status_code, codes(refused)) == (status, [code])
    assert refused.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("verb", ["retry", "cancel"])
@pytest.mark.parametrize("name", ["nothing", "6c6f2125-adad-4fec-ac0c-52ecf94397cc"])
def test_unknown_task_returns_404(shared_node: ScriptedNode, verb: str, name: str) -> None:
    for answer in (
        shared_node.post(f"/tasks/{name}/{verb}"),
        shared_node.plane.client().get(f"/tasks/{name}"),
        shared_node.plane.client().get(f"/tasks/{name}/watch"),
    ):
        assert (answer.status_code, codes(answer)) == (404, ["unknown_task"])


def test_task_list_with_invalid_filters_is_refused_with_every_invalid_filter(
    shared_node: ScriptedNode,
) -> None:
    wrong = {"node": "N", "slot": "n1", "allocation": "x", "state": "odd", "kind": "shell", "cursor": "x"}
    refused = shared_node.plane.client().get("/tasks", params=wrong)
    assert refused.status_code == 422
    assert len(codes(refused)) == 5
    refused = shared_node.plane.client().get("/tasks", params={"cursor": "9" * 40})
    assert (refused.status_code, codes(refused)) == (422, ["number_out_of_range"])


def test_task_that_the_agent_does_not_support_is_refused(emptied_plane: RunningPlane) -> None:
    node = scripted_node(emptied_plane)
    assert renew(emptied_plane, renewal("n1", 1, "next", capabilities=("drift.report/1",))).is_success
    refused = node.post("/tasks", kind="node.verify", node_id="n1")
    assert (refused.status_code, codes(refused)) == (409, ["unsupported_by_agent"])
    assert renew(
        emptied_plane, renewal("n1", 2, "after", presented="next", capabilities=("node.verify/1",))
    ).is_success
    assert node.post("/tasks", kind="node.verify", node_id="n1").status_code == 202


@pytest.fixture(scope="module")
def shared_node(shared_plane: RunningPlane) -> ScriptedNode:
    return scripted_node(shared_plane)


def test_task_pages_contain_every_task_once(emptied_plane: RunningPlane) -> None:
    node = scripted_node(emptied_plane, slots=5)
    for _ in range(5):
        allocate(emptied_plane)
    until(lambda: len(node.tasks()) == 5, "all orders are derived")
    found, cursor = [], None
    while True:
        page = emptied_plane.client().get(
            "/tasks", params={"limit": 2, **({"cursor": cursor} if cursor else {})}
        )
        found += [each["id"] for each in page.json()["items"]]
        if (cursor := page.json()["next_cursor"]) is None:
            break
    assert found == [each["id"] for each in node.tasks()]


def test_ledger_stream_parked_after_an_error_is_listed_and_processed_again_on_request(
    emptied_plane: RunningPlane,
) -> None:
    client = emptied_plane.client()
    emptied_plane.rows(
        "insert into work.parked (stream_id, since, error) values ('task-x', clock_timestamp(), 'odd') returning 1"
    )
    [item] = client.get("/parked").json()["items"]
    assert (item["stream"], item["error"]) == ("task-x", "odd")
    assert client.post("/parked/task-x/retry").json()["next_look_at"] is not None
    until(lambda: client.get("/parked").json()["items"] == [], "the stream was processed again")
    gone = client.post("/parked/task-x/retry")
    assert (gone.status_code, codes(gone)) == (404, ["unknown_parked"])
