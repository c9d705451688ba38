"""Waiting for allocations and tasks: reached states, ends in other states, and timeouts."""

import time
from typing import Any

import msgspec
import pytest

from control_plane.client import errors
from control_plane.client.answers import Allocation, Event, Task
from control_plane.client.timeline import Timeline
from control_plane.client.waits import Goal
from tests.cli.control_plane import Reply, ScriptedPlane, document, stream
from tests.cli.examples import (
    ACTIVE,
    ALLOCATION,
    BRING_UP,
    FAILED,
    PLACED,
    RELEASED,
    RELEASING,
    REMOVED,
    REQUESTED,
    STARTING,
    allocation,
    event,
)
from tests.client.clients import AnyClient

PATH = f"/v1/allocations/{ALLOCATION}"
TASK = {
    "id": "t-1",
    "kind": "node.verify",
    "state": "sent",
    "node_id": "n1",
    "created_at": "2026-01-02T03:04:05Z",
}


def placed(**changes: Any) -> Allocation:
    return msgspec.convert(allocation("placed", **{"version": 2, **changes}), Allocation)


def test_client_wait_returns_the_allocation_as_soon_as_it_is_in_the_awaited_state(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(f"GET {PATH}/watch", stream(REQUESTED, PLACED), stream(STARTING, ACTIVE, hold=True))
    plane.script(f"GET {PATH}", document(allocation("active")))
    assert client.wait_for(placed(), "active", within=60).state == "active"


def test_client_wait_for_the_present_state_of_an_allocation_sends_no_request(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    assert client.wait_for(placed(), "placed", within=60).state == "placed"
    assert plane.received == []


def test_client_wait_raises_not_reached_if_the_allocation_ends_in_another_state(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(f"GET {PATH}/watch", stream(REQUESTED, PLACED, FAILED, hold=True))
    reason = {"code": "deadline_missed", "message": "not ready: lab-a/0"}
    plane.script(f"GET {PATH}", document(allocation("failed", reason=reason)))
    with pytest.raises(
        errors.NotReached, match=r"is failed: not ready: lab-a/0 \[deadline_missed\]"
    ) as ended:
        client.wait_for(placed(), "active", within=60)
    assert ended.value.state == "failed"


def test_client_wait_for_a_state_that_is_not_reached_times_out(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(f"GET {PATH}/watch", stream(REQUESTED, PLACED, hold=True))
    began = time.monotonic()
    with pytest.raises(errors.TimedOut, match="did not become active within 1 s; the operation continues"):
        client.wait_for(placed(), "active", within=1)
    assert time.monotonic() - began < 10


def test_client_wait_for_a_task_returns_the_task_when_it_is_done(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script("GET /v1/tasks/t-1", document(TASK), document(TASK), document({**TASK, "state": "done"}))
    plane.script("GET /v1/tasks/t-1/watch", stream(event(1, "task.sent"), event(2, "task.done"), hold=True))
    assert client.wait_for(msgspec.convert(TASK, Task), within=60).state == "done"


def test_client_wait_for_a_task_that_fails_raises_not_reached_with_the_reason(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    failed = {**TASK, "state": "failed", "reason": {"code": "c", "message": "no bridge"}}
    plane.script("GET /v1/tasks/t-1", document(failed))
    with pytest.raises(
        errors.NotReached, match=r"task t-1 did not become done; it is failed: no bridge \[c\]"
    ):
        client.wait_for(msgspec.convert(TASK, Task), within=60)


def test_client_wait_continues_after_lost_connections_to_the_control_plane(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(f"GET {PATH}/watch", Reply(lose=True), stream(*BRING_UP, hold=True))
    plane.script(f"GET {PATH}", Reply(lose=True), document(allocation("active")))
    assert client.wait_for(placed(), "active", within=60).state == "active"


def timeline(*events: dict[str, object]) -> Timeline:
    found = Timeline(ALLOCATION)
    for each in events:
        found = found.then(msgspec.convert(each, Event))
    return found


def test_target_state_that_was_reached_before_the_given_version_does_not_end_the_wait() -> None:
    assert not Goal("active", since=9).over(timeline(*BRING_UP))
    stopping, starting = event(8, "allocation.stopping"), event(9, "allocation.starting")
    assert not Goal("active", since=9).over(timeline(*BRING_UP, stopping))
    assert not Goal("active", since=9).over(timeline(*BRING_UP, stopping, starting))
    assert Goal("active", since=9).over(
        timeline(*BRING_UP, stopping, starting, event(10, "allocation.activated"))
    )


def test_client_wait_for_the_release_of_an_allocation_lasts_until_its_slots_are_proved_empty() -> None:
    assert not Goal("released").over(timeline(*BRING_UP, RELEASING, REMOVED))
    assert Goal("released").over(timeline(*BRING_UP, RELEASING, REMOVED, RELEASED))
