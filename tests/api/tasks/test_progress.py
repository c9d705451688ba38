"""Progress of orders: nodes report progress, watches of every API process receive it, and the ledger stores none."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from control_plane.api.routes.progress import Mailbox, with_progress
from control_plane.queues.progress import Step
from tests.api.api_process import api_process
from tests.api.node import allocate
from tests.api.scripted_node import ScriptedNode, scripted_node
from tests.api.streams import Event, Stream, open_stream
from tests.servers.plane import RunningPlane
from tests.waiting import until

NOW = datetime.now(UTC)


def progress_step(
    order: str, step: str, number: int, *, seconds_later: float = 0.0, of: int | None = 5
) -> dict[str, Any]:
    at = (NOW + timedelta(seconds=seconds_later)).isoformat()
    return {"order_id": order, "step": step, "number": number, "of": of, "at": at}


def post_progress(node: ScriptedNode, *steps: dict[str, Any]) -> None:
    answer = node.node.post("/progress", json={"progress": steps})
    assert answer.status_code == 204, answer.text


def provisioning_allocation(plane: RunningPlane) -> tuple[ScriptedNode, str, str]:
    """Return a node, an allocation on this node, and the id of the order that the node is executing."""
    node = scripted_node(plane)
    allocation = str(allocate(plane).json()["id"])
    until(lambda: [each["state"] for each in node.orders(allocation)] == ["sent"], "its order is sent")
    return node, allocation, str(node.orders(allocation)[0]["id"])


def next_progress(stream: Stream) -> Event:
    while (event := stream.next()).type != "progress":
        pass
    return event


def subscribed_channels(plane: RunningPlane) -> list[str]:
    with redis.Redis.from_url(plane.redis.url) as admin:
        channels: list[bytes] = admin.pubsub_channels("progress:*")
        return [channel.decode() for channel in channels]


def test_task_progress_that_a_node_reports_reaches_watches_on_every_api_process(
    emptied_plane: RunningPlane, tmp_path: Path
) -> None:
    node, allocation, order = provisioning_allocation(emptied_plane)
    with (
        api_process(emptied_plane, tmp_path / "log") as other,
        open_stream(other.plane, f"/allocations/{allocation}/watch") as allocation_stream,
        open_stream(emptied_plane, f"/tasks/{order}/watch") as task_stream,
    ):
        with redis.Redis.from_url(emptied_plane.redis.url) as admin:
            listeners = "progress:n1"
            until(lambda: dict(admin.pubsub_numsub(listeners))[b"progress:n1"] == 2, "both processes listen")
        for stream in (allocation_stream, task_stream):
            assert stream.next().id.startswith("1."), "a watch begins with the events that exist"
        post_progress(node, progress_step(order, "machine", 3))
        for stream in (allocation_stream, task_stream):
            event = next_progress(stream)
            assert (event.data["task_id"], event.data["step"], event.data["number"]) == (order, "machine", 3)
            assert event.id.startswith("1."), (
                "a progress message has the id of the newest event, and none of its own"
            )


def test_task_watch_that_starts_late_receives_the_newest_progress_step(emptied_plane: RunningPlane) -> None:
    node, allocation, order = provisioning_allocation(emptied_plane)
    post_progress(node, progress_step(order, "link", 1), progress_step(order, "port", 2, seconds_later=1))
    post_progress(node, progress_step(order, "link", 1, seconds_later=0.5))
    assert node.task(order)["progress"]["step"] == "port", (
        "a step that arrives late does not replace a newer one"
    )
    for path in (f"/allocations/{allocation}/watch", f"/tasks/{order}/watch"):
        with open_stream(emptied_plane, path) as stream:
            assert next_progress(stream).data["step"] == "port"


def test_progress_report_about_a_finished_order_or_an_order_of_another_node_is_ignored(
    emptied_plane: RunningPlane,
) -> None:
    node, allocation, order = provisioning_allocation(emptied_plane)
    post_progress(scripted_node(emptied_plane, "n2"), progress_step(order, "link", 1))
    post_progress(node, progress_step(str(uuid4()), "link", 1))
    assert node.task(order)["progress"] is None
    post_progress(node, progress_step(order, "link", 1))
    assert node.task(order)["progress"] is not None
    node.report(
        "slice.failed", slot_id="n1/0", allocation_id=allocation, reason={"code": "x", "message": "y"}
    )
    emptied_plane.client().post(f"/tasks/{order}/cancel")
    until(lambda: node.task(order)["state"] not in {"due", "sent"}, "the order is finished")
    post_progress(node, progress_step(order, "port", 2))
    assert node.task(order)["progress"] is None


def test_task_progress_that_a_node_reports_adds_no_event(emptied_plane: RunningPlane) -> None:
    node, _allocation, order = provisioning_allocation(emptied_plane)
    [before] = emptied_plane.rows("select count(*) from ledger.event")
    post_progress(node, progress_step(order, "link", 1))
    assert emptied_plane.rows("select count(*) from ledger.event") == [before]


def test_api_subscribes_to_the_progress_of_a_node_only_while_a_client_watches_a_task_of_the_node(
    emptied_plane: RunningPlane,
) -> None:
    node, allocation, order = provisioning_allocation(emptied_plane)
    assert subscribed_channels(emptied_plane) == []
    with open_stream(emptied_plane, f"/allocations/{allocation}/watch"):
        until(
            lambda: subscribed_channels(emptied_plane) == ["progress:n1"],
            "the API has subscribed to the node",
        )
    until(lambda: subscribed_channels(emptied_plane) == [], "the API has unsubscribed")
    with open_stream(emptied_plane, f"/tasks/{order}/watch") as again:
        until(
            lambda: subscribed_channels(emptied_plane) == ["progress:n1"],
            "the API has subscribed to the node again",
        )
        post_progress(node, progress_step(order, "link", 1))
        assert next_progress(again).data["step"] == "link"


def test_api_unsubscribes_from_the_progress_of_a_node_while_a_client_still_watches_another_node(
    emptied_plane: RunningPlane,
) -> None:
    _node, first, _order = provisioning_allocation(emptied_plane)
    scripted_node(emptied_plane, "n2")
    second = allocate(emptied_plane).json()["id"]
    with open_stream(emptied_plane, f"/allocations/{second}/watch"):
        with open_stream(emptied_plane, f"/allocations/{first}/watch"):
            both = ["progress:n1", "progress:n2"]
            until(
                lambda: sorted(subscribed_channels(emptied_plane)) == both,
                "the API has subscribed to both nodes",
            )
        until(
            lambda: subscribed_channels(emptied_plane) == ["progress:n2"], "the API is subscribed to one node"
        )


def test_watch_receives_progress_after_its_redis_connection_was_closed(emptied_plane: RunningPlane) -> None:
    node, allocation, order = provisioning_allocation(emptied_plane)
    with open_stream(emptied_plane, f"/allocations/{allocation}/watch") as stream:
        until(
            lambda: subscribed_channels(emptied_plane) == ["progress:n1"],
            "the API has subscribed to the node",
        )
        with redis.Redis.from_url(emptied_plane.redis.url) as admin:
            admin.client_kill_filter(_type="pubsub")
        until(lambda: subscribed_channels(emptied_plane) == ["progress:n1"], "the API has subscribed again")
        post_progress(node, progress_step(order, "link", 1))
        assert next_progress(stream).data["step"] == "link"


def test_invalid_progress_report_is_refused(emptied_plane: RunningPlane) -> None:
    node = scripted_node(emptied_plane)
    order = str(uuid4())
    wrong: list[dict[str, Any]] = [
        {},
        {"progress": []},
        {"progress": [{**progress_step(order, "x", 1), "more": 1}]},
    ]
    for body in wrong:
        assert node.node.post("/progress", json=body).status_code == 422


async def test_progress_message_is_not_inserted_between_the_chunks_of_another_watch_message() -> None:
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def chunks() -> AsyncIterator[bytes]:
        while piece := await pieces.get():
            yield piece

    mailbox = Mailbox(lambda _step: True)
    stream = with_progress(chunks(), mailbox)
    pieces.put_nowait(b"data: begins, ")
    assert await anext(stream) == b"data: begins, "
    mailbox.put([Step("t", "slice.apply", None, None, "link", 1, None, "2026-03-01T12:00:00Z")])
    further = asyncio.ensure_future(anext(stream))
    for _turn in range(10):
        await asyncio.sleep(0)
    assert not further.done(), "the step waits for the end of the message"
    pieces.put_nowait(b"ends\n\n")
    assert await further == b"ends\n\n"
    assert (await anext(stream)).startswith(b"event: progress\n")
    pieces.put_nowait(b"")
    assert [each async for each in stream] == []


def test_task_progress_that_waits_for_a_slow_watch_is_reduced_to_the_newest_step_of_each_task() -> None:
    mailbox = Mailbox(lambda step: step.task_id != "other")
    for task, name in (("a", "link"), ("b", "link"), ("a", "port"), ("other", "link")):
        mailbox.put([Step(task, "slice.apply", None, None, name, 1, None, "2026-03-01T12:00:00Z")])
    written = asyncio.run(mailbox.news()).decode()
    assert written.count("event: progress") == 2
    assert '"step":"port"' in written
