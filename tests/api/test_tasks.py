"""Tasks over the API: asked for, listed, tried again, stopped, and told by their nodes."""

import base64
import json
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis

from tests.api.node import allocate, renew, renewal, wanted
from tests.api.played import VERIFIED, Played, played
from tests.api.streams import open_stream
from tests.servers.plane import RunningPlane
from tests.waiting import until

REASON = {"code": "because", "message": "of the test"}


def codes(answer: httpx.Response) -> list[str]:
    return [reason["code"] for reason in answer.json()["reasons"]]


def kind_of(signed: str) -> str:
    """Of an order as nodes get it (RFC 7515: the payload stands between two dots)."""
    payload = signed.split(".")[1]
    sealed = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(sealed["order"]["body"]["kind"])


def wait_for_order(node: Played, allocation: str, kind: str) -> dict[str, Any]:
    """The newest order of that kind that the allocation's slot was sent."""
    until(
        lambda: any(each["kind"] == kind and each["state"] == "sent" for each in node.orders(allocation)),
        kind,
    )
    return next(each for each in node.orders(allocation) if each["kind"] == kind)


def with_slice(running_plane: RunningPlane, **fields: object) -> tuple[Played, str]:
    node = played(running_plane)
    made = allocate(running_plane, **fields)
    assert made.status_code == 202, made.text
    return node, str(made.json()["id"])


def being_removed(running_plane: RunningPlane) -> tuple[Played, str, dict[str, Any]]:
    node, allocation = with_slice(running_plane)
    assert running_plane.client().delete(f"/allocations/{allocation}").is_success
    return node, allocation, wait_for_order(node, allocation, "slice.remove")


def test_a_task_asked_of_a_node_ends_with_its_result(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    answer = node.ask("/tasks", kind="node.verify", node_id="n1")
    task = answer.json()["id"]
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/tasks/{task}")
    assert answer.json()["state"] == "due"
    node.await_state(task, "sent")
    node.say("operation.done", operation_id=node.operation(task), result=VERIFIED)
    shown = node.show(task)
    assert (shown["state"], shown["result"], shown["attempt"]) == ("done", VERIFIED, 1)
    assert [each["id"] for each in node.tasks()] == [task]
    events = running_plane.client().get("/events", params={"stream": f"task-{task}"}).json()["items"]
    assert [each["type"] for each in events] == ["task.asked", "task.succeeded"]
    assert [each["actor"].partition(":")[0] for each in events] == ["key", "node"]


def test_a_task_about_a_slot_belongs_to_the_story_of_its_allocation(running_plane: RunningPlane) -> None:
    node, allocation = with_slice(running_plane)
    task = node.asked("drift.report", slot_id="n1/0")
    assert node.show(task)["allocation_id"] == allocation
    story = running_plane.client().get(f"/allocations/{allocation}/events").json()["items"]
    assert "task.asked" in [each["type"] for each in story]
    assert [kind_of(text) for text in wanted(node.node)] == ["slice.apply"], "an operation is no wish"


def test_the_same_key_asks_once(running_plane: RunningPlane) -> None:
    played(running_plane)
    client = running_plane.client(**{"Idempotency-Key": "once"})
    answers = [client.post("/tasks", json={"kind": "node.verify", "node_id": "n1"}) for _ in range(2)]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert len(running_plane.client().get("/tasks").json()["items"]) <= 1


def test_a_failure_that_may_pass_is_tried_again_and_then_stays(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    task = node.asked("node.verify", node_id="n1")
    passing = {"code": "host_unreadable", "message": "the switch did not answer"}
    first = node.operation(task)
    node.say("operation.failed", operation_id=first, reason=passing)
    shown = node.show(task)
    assert (shown["state"], shown["reason"]) == ("waiting", passing)
    until(lambda: node.show(task)["attempt"] == 2, "it is tried again")
    assert node.operation(task) != first
    node.say("operation.failed", operation_id=first, reason=passing)
    assert node.show(task)["attempt"] == 2, "what is said of an old try decides nothing"
    node.say("operation.failed", operation_id=node.operation(task), reason=REASON)
    assert (node.show(task)["state"], node.show(task)["reason"]) == ("failed", REASON)
    assert [each["id"] for each in node.tasks(state="failed")] == [task], "old tries are not listed"
    assert node.ask(f"/tasks/{task}/retry").status_code == 202
    until(lambda: node.show(task)["state"] == "sent", "it is tried again for the admin")
    assert node.show(task)["attempt"] == 3


def test_a_node_ends_operations_of_its_own_only(running_plane: RunningPlane) -> None:
    node, other = played(running_plane, "n1"), played(running_plane, "n2")
    task = node.asked("node.verify", node_id="n1")
    other.say("operation.done", operation_id=node.operation(task), result=VERIFIED)
    other.say("operation.failed", operation_id=str(uuid4()), reason=REASON)
    assert node.show(task)["state"] == "sent"


def test_the_result_of_another_kind_is_a_failure(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    task = node.asked("node.verify", node_id="n1")
    wrong = {"kind": "drift.report", "drift": []}
    node.say("operation.done", operation_id=node.operation(task), result=wrong)
    assert node.show(task)["reason"]["code"] == "wrong_result"


def test_what_waits_in_the_queue_is_taken_back_when_it_is_cancelled(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    task = node.asked("node.verify", node_id="n1")
    operation = node.operation(task)
    cancelled = node.ask(f"/tasks/{task}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    node.say("operation.done", operation_id=operation, result=VERIFIED)
    assert node.show(task)["state"] == "cancelled", "it is over, whatever comes later"
    assert codes(node.ask(f"/tasks/{task}/cancel")) == ["task_over"]


def fetched_by_a_living_worker(plane: RunningPlane, operation: str) -> None:
    """As after a fetch: the worker holds it, and is heard of."""
    with redis.Redis.from_url(plane.redis.url) as admin:
        seconds, micros = admin.time()
        admin.zadd("ctl:n1:workers", {"w": seconds * 1000 + micros // 1000 + 60_000})
        admin.hset("ctl:n1:slices.held", operation, "w")
        admin.lrem("ctl:n1:slices", 1, operation)


def test_what_is_at_work_is_stopped_by_its_node(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    task = node.asked("node.verify", node_id="n1")
    operation = node.operation(task)
    fetched_by_a_living_worker(running_plane, operation)
    cancelled = node.ask(f"/tasks/{task}/cancel").json()
    assert cancelled["state"] == "sent"
    until(lambda: node.show(task)["cancelling"], "the node is told to stop")
    node.say(
        "operation.failed", operation_id=operation, reason={"code": "cancelled", "message": "between steps"}
    )
    shown = node.show(task)
    assert (shown["state"], shown["cancelling"]) == ("cancelled", False)
    assert node.ask(f"/tasks/{task}/retry").status_code == 202
    until(lambda: node.show(task)["attempt"] == 2, "it is tried again")


def test_a_node_that_had_not_begun_says_so_and_the_task_is_cancelled(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    task = node.asked("node.verify", node_id="n1")
    fetched_by_a_living_worker(running_plane, node.operation(task))
    node.ask(f"/tasks/{task}/cancel")
    stop = "select order_id from work.task where kind = 'operation.cancel'"
    until(lambda: len(running_plane.rows(stop)) == 1, "the node is told to stop")
    [(cancel,)] = running_plane.rows(stop)
    result = {"kind": "operation.cancel", "was_running": False}
    node.say("operation.done", operation_id=str(cancel), result=result)
    assert node.show(task)["state"] == "cancelled"


def test_every_order_of_an_allocation_is_a_task(running_plane: RunningPlane) -> None:
    node, allocation = with_slice(running_plane)
    order = wait_for_order(node, allocation, "slice.apply")
    assert order["slot_id"] == "n1/0"
    assert order["sends"] == 1
    for picked in ({"node": "n1"}, {"slot": "n1/0"}, {"state": "sent"}, {"kind": "slice.apply"}):
        assert [each["id"] for each in node.tasks(**picked)] == [order["id"]], picked
    for picked in ({"node": "n2"}, {"slot": "n1/1"}, {"state": "done"}, {"kind": "slice.remove"}):
        assert node.tasks(**picked) == [], picked


def test_a_slice_whose_order_is_cancelled_fails_and_is_taken_away(running_plane: RunningPlane) -> None:
    node, allocation = with_slice(running_plane)
    order = wait_for_order(node, allocation, "slice.apply")
    cancelled = node.ask(f"/tasks/{order['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    shown = running_plane.client().get(f"/allocations/{allocation}").json()
    assert (shown["state"], shown["reason"]["code"]) == ("failed", "cancelled")
    wait_for_order(node, allocation, "slice.remove")


def test_a_removal_cannot_be_cancelled(running_plane: RunningPlane) -> None:
    node, _allocation, removal = being_removed(running_plane)
    assert codes(node.ask(f"/tasks/{removal['id']}/cancel")) == ["removal_goes_on"]


@pytest.mark.parametrize(("code", "state"), [("poisoned", "poisoned"), ("wrong_network", "refused")])
def test_a_removal_that_its_node_gave_up_is_wanted_anew(
    running_plane: RunningPlane, code: str, state: str
) -> None:
    node, allocation, removal = being_removed(running_plane)
    assert codes(node.ask(f"/tasks/{removal['id']}/retry")) == ["task_under_way"]
    reason = {"code": code, "message": "of the test"}
    node.say("order.refused", order_id=removal["id"], slot_id="n1/0", reason=reason)
    shown = node.show(removal["id"])
    assert (shown["state"], shown["reason"]) == (state, reason)
    assert node.ask(f"/tasks/{removal['id']}/retry").status_code == 202
    until(lambda: len(node.tasks(kind="slice.remove", state="sent")) == 1, "a new order is sent")
    [anew] = node.tasks(kind="slice.remove", state="sent")
    assert anew["id"] != removal["id"]
    node.say("slice.removed", slot_id="n1/0", allocation_id=allocation, absent=["port"])
    assert running_plane.client().get(f"/allocations/{allocation}").json()["state"] == "released"
    assert codes(node.ask(f"/tasks/{removal['id']}/retry")) == ["not_to_be_emptied"]


def test_a_slot_that_was_emptied_is_wanted_empty_for_ever(running_plane: RunningPlane) -> None:
    """A node that lost its disk would take a copy of an older order that somebody puts into its queue."""
    node, allocation, removal = being_removed(running_plane)
    node.say("slice.removed", slot_id="n1/0", allocation_id=allocation, absent=["port"])
    assert running_plane.client().get(f"/allocations/{allocation}").json()["state"] == "released"
    done = "update work.task set state = 'done' where order_id = %(order)s returning 1"
    assert running_plane.rows(done, order=removal["id"]) == [(1,)], "as when the report names the order"
    assert [kind_of(text) for text in wanted(node.node)] == ["slice.remove"]


def test_a_watcher_of_an_order_is_told_that_its_node_refused_it(running_plane: RunningPlane) -> None:
    node, _allocation, removal = being_removed(running_plane)
    reason = {"code": "wrong_network", "message": "of the test"}
    with open_stream(running_plane, f"/tasks/{removal['id']}/watch") as stream:
        node.say("order.refused", order_id=removal["id"], slot_id="n1/0", reason=reason)
        assert [event.type for event in stream.take(3)] == [
            "allocation.releasing",
            "slot.releasing",
            "order.refused",
        ]


def test_a_watcher_of_a_task_is_told_its_events_alone(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    task = node.asked("node.verify", node_id="n1")
    allocate(running_plane)
    with open_stream(running_plane, f"/tasks/{task}/watch") as stream:
        node.say("operation.done", operation_id=node.operation(task), result=VERIFIED)
        assert [event.type for event in stream.take(2)] == ["task.asked", "task.succeeded"]


def test_what_remains_is_told_while_the_removal_goes_on(running_plane: RunningPlane) -> None:
    node, allocation, removal = being_removed(running_plane)
    node._sequence += 1
    body = {
        "kind": "slice.remains",
        "slot_id": "n1/0",
        "allocation_id": allocation,
        "leftovers": ["tap tap0"],
    }
    report = {"sequence": node._sequence, "observed_at": "2026-03-01T12:00:00Z", "body": body}
    report["order_id"] = removal["id"]
    node.node.post("/reports", json={"incarnation": node._spool, "reports": [report]})
    shown = node.show(removal["id"])
    assert (shown["state"], shown["reason"]) == ("sent", {"code": "leftovers", "message": "tap tap0"})


def test_a_slice_is_not_brought_up_a_second_time(running_plane: RunningPlane) -> None:
    node, allocation = with_slice(running_plane)
    order = wait_for_order(node, allocation, "slice.apply")
    refused = node.ask(f"/tasks/{order['id']}/retry")
    assert refused.status_code == 409
    assert codes(refused) == ["not_retriable", "task_under_way"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "required"),
        ({"kind": "node.verify"}, 422, "wrong_place"),
        ({"kind": "node.verify", "node_id": "n1", "slot_id": "n1/0"}, 422, "wrong_place"),
        ({"kind": "drift.report", "node_id": "n1"}, 422, "wrong_place"),
        ({"kind": "node.verify", "node_id": "n1", "shell": "rm"}, 422, "unknown_field"),
        ({"kind": "slice.apply", "slot_id": "n1/0"}, 422, "not_askable"),
        ({"kind": "operation.cancel", "node_id": "n1"}, 422, "unknown_kind"),
        ({"kind": "shell.run", "node_id": "n1"}, 422, "unknown_kind"),
        ({"kind": "node.verify", "node_id": "nowhere"}, 404, "unknown_node"),
        ({"kind": "drift.report", "slot_id": "n1/9"}, 404, "unknown_slot"),
        ({"kind": "drift.report", "slot_id": "n1/0"}, 409, "nothing_wanted"),
    ],
)
def test_a_wrong_request_is_refused_with_its_reason(
    shared_site: Played, body: dict[str, str], status: int, code: str
) -> None:
    refused = shared_site.plane.client().post("/tasks", json=body)
    assert (refused.status_code, codes(refused)) == (status, [code])
    assert refused.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("verb", ["retry", "cancel"])
@pytest.mark.parametrize("name", ["nothing", "6c6f2125-adad-4fec-ac0c-52ecf94397cc"])
def test_a_task_that_is_not_there_is_not_found(shared_site: Played, verb: str, name: str) -> None:
    for answer in (
        shared_site.ask(f"/tasks/{name}/{verb}"),
        shared_site.plane.client().get(f"/tasks/{name}"),
        shared_site.plane.client().get(f"/tasks/{name}/watch"),
    ):
        assert (answer.status_code, codes(answer)) == (404, ["unknown_task"])


def test_every_filter_that_is_wrong_is_named(shared_site: Played) -> None:
    wrong = {"node": "N", "slot": "n1", "allocation": "x", "state": "odd", "kind": "shell", "cursor": "x"}
    refused = shared_site.plane.client().get("/tasks", params=wrong)
    assert refused.status_code == 422
    assert len(codes(refused)) == 5
    refused = shared_site.plane.client().get("/tasks", params={"cursor": "9" * 40})
    assert (refused.status_code, codes(refused)) == (422, ["number_out_of_range"])


def test_a_node_is_not_asked_for_what_it_does_not_speak(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    assert renew(running_plane, renewal("n1", 1, "next", speaks=("drift.report/1",))).is_success
    refused = node.ask("/tasks", kind="node.verify", node_id="n1")
    assert (refused.status_code, codes(refused)) == (409, ["not_spoken"])
    assert renew(
        running_plane, renewal("n1", 2, "after", presented="next", speaks=("node.verify/1",))
    ).is_success
    assert node.ask("/tasks", kind="node.verify", node_id="n1").status_code == 202


@pytest.fixture(scope="module")
def shared_site(shared_plane: RunningPlane) -> Played:
    return played(shared_plane)


def test_pages_have_every_task_once(running_plane: RunningPlane) -> None:
    node = played(running_plane, slots=5)
    for _ in range(5):
        allocate(running_plane)
    until(lambda: len(node.tasks()) == 5, "all orders are derived")
    found, cursor = [], None
    while True:
        page = running_plane.client().get(
            "/tasks", params={"limit": 2, **({"cursor": cursor} if cursor else {})}
        )
        found += [each["id"] for each in page.json()["items"]]
        if (cursor := page.json()["next_cursor"]) is None:
            break
    assert found == [each["id"] for each in node.tasks()]


def test_a_parked_stream_is_shown_and_looked_at_again_at_once(running_plane: RunningPlane) -> None:
    client = running_plane.client()
    running_plane.rows(
        "insert into work.parked (stream_id, since, error) values ('task-x', clock_timestamp(), 'odd') returning 1"
    )
    [item] = client.get("/parked").json()["items"]
    assert (item["stream"], item["error"]) == ("task-x", "odd")
    assert client.post("/parked/task-x/retry").json()["next_look_at"] is not None
    until(lambda: client.get("/parked").json()["items"] == [], "it was looked at")
    gone = client.post("/parked/task-x/retry")
    assert (gone.status_code, codes(gone)) == (404, ["unknown_parked"])
