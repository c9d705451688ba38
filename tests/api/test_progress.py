"""Progress: told by nodes, seen by whoever watches on any process of the API, and free for whoever does not."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from control_plane.api.progress import LetterBox, with_progress
from control_plane.progress import Step
from tests.api.api_process import api_process
from tests.api.node import allocate
from tests.api.played import Played, played
from tests.api.streams import Event, Stream, open_stream
from tests.servers.plane import RunningPlane
from tests.waiting import until

NOW = datetime.now(UTC)


def told(order: str, step: str, number: int, *, later: float = 0.0, of: int | None = 5) -> dict[str, Any]:
    at = (NOW + timedelta(seconds=later)).isoformat()
    return {"order_id": order, "step": step, "number": number, "of": of, "at": at}


def tell(node: Played, *steps: dict[str, Any]) -> None:
    answer = node.node.post("/progress", json={"progress": steps})
    assert answer.status_code == 204, answer.text


def coming_up(plane: RunningPlane) -> tuple[Played, str, str]:
    """A node, an allocation, and the order that its node works on."""
    node = played(plane)
    allocation = str(allocate(plane).json()["id"])
    until(lambda: [each["state"] for each in node.orders(allocation)] == ["sent"], "its order is sent")
    return node, allocation, str(node.orders(allocation)[0]["id"])


def next_progress(stream: Stream) -> Event:
    while (event := stream.next()).type != "progress":
        pass
    return event


def watched_nodes(plane: RunningPlane) -> list[str]:
    with redis.Redis.from_url(plane.redis.url) as admin:
        channels: list[bytes] = admin.pubsub_channels("progress:*")
        return [channel.decode() for channel in channels]


def test_progress_reaches_watchers_on_every_process(running_plane: RunningPlane, tmp_path: Path) -> None:
    node, allocation, order = coming_up(running_plane)
    with (
        api_process(running_plane, tmp_path / "log") as other,
        open_stream(other.plane, f"/allocations/{allocation}/watch") as of_allocation,
        open_stream(running_plane, f"/tasks/{order}/watch") as of_task,
    ):
        with redis.Redis.from_url(running_plane.redis.url) as admin:
            listeners = "progress:n1"
            until(lambda: dict(admin.pubsub_numsub(listeners))[b"progress:n1"] == 2, "both processes listen")
        tell(node, told(order, "machine", 3))
        for stream in (of_allocation, of_task):
            event = next_progress(stream)
            assert (event.data["task_id"], event.data["step"], event.data["number"]) == (order, "machine", 3)
            assert event.id.startswith("1."), "it has no id of its own"


def test_who_comes_late_is_told_the_newest_step(running_plane: RunningPlane) -> None:
    node, allocation, order = coming_up(running_plane)
    tell(node, told(order, "link", 1), told(order, "port", 2, later=1))
    tell(node, told(order, "link", 1, later=0.5))
    assert node.show(order)["progress"]["step"] == "port", "what comes late is not the newest"
    for path in (f"/allocations/{allocation}/watch", f"/tasks/{order}/watch"):
        with open_stream(running_plane, path) as stream:
            assert next_progress(stream).data["step"] == "port"


def test_a_node_tells_of_its_own_open_orders_alone(running_plane: RunningPlane) -> None:
    node, allocation, order = coming_up(running_plane)
    tell(played(running_plane, "n2"), told(order, "link", 1))
    tell(node, told(str(uuid4()), "link", 1))
    assert node.show(order)["progress"] is None
    tell(node, told(order, "link", 1))
    assert node.show(order)["progress"] is not None
    node.say("slice.failed", slot_id="n1/0", allocation_id=allocation, reason={"code": "x", "message": "y"})
    running_plane.client().post(f"/tasks/{order}/cancel")
    until(lambda: node.show(order)["state"] not in {"due", "sent"}, "the order is over")
    tell(node, told(order, "port", 2))
    assert node.show(order)["progress"] is None


def test_progress_is_no_event(running_plane: RunningPlane) -> None:
    node, _allocation, order = coming_up(running_plane)
    [before] = running_plane.rows("select count(*) from ledger.event")
    tell(node, told(order, "link", 1))
    assert running_plane.rows("select count(*) from ledger.event") == [before]


def test_nobody_listens_for_a_node_that_nobody_watches(running_plane: RunningPlane) -> None:
    node, allocation, order = coming_up(running_plane)
    assert watched_nodes(running_plane) == []
    with open_stream(running_plane, f"/allocations/{allocation}/watch"):
        until(lambda: watched_nodes(running_plane) == ["progress:n1"], "its node is listened to")
    until(lambda: watched_nodes(running_plane) == [], "nobody listens any more")
    with open_stream(running_plane, f"/tasks/{order}/watch") as again:
        until(lambda: watched_nodes(running_plane) == ["progress:n1"], "its node is listened to again")
        tell(node, told(order, "link", 1))
        assert next_progress(again).data["step"] == "link"


def test_who_still_watches_keeps_nobody_else_listened_to(running_plane: RunningPlane) -> None:
    _node, first, _order = coming_up(running_plane)
    played(running_plane, "n2")
    second = allocate(running_plane).json()["id"]
    with open_stream(running_plane, f"/allocations/{second}/watch"):
        with open_stream(running_plane, f"/allocations/{first}/watch"):
            both = ["progress:n1", "progress:n2"]
            until(lambda: sorted(watched_nodes(running_plane)) == both, "both nodes are listened to")
        until(lambda: watched_nodes(running_plane) == ["progress:n2"], "one is, still")


def test_a_watch_goes_on_when_redis_was_away(running_plane: RunningPlane) -> None:
    node, allocation, order = coming_up(running_plane)
    with open_stream(running_plane, f"/allocations/{allocation}/watch") as stream:
        until(lambda: watched_nodes(running_plane) == ["progress:n1"], "its node is listened to")
        with redis.Redis.from_url(running_plane.redis.url) as admin:
            admin.client_kill_filter(_type="pubsub")
        until(lambda: watched_nodes(running_plane) == ["progress:n1"], "it is listened to again")
        tell(node, told(order, "link", 1))
        assert next_progress(stream).data["step"] == "link"


def test_wrong_progress_is_refused(running_plane: RunningPlane) -> None:
    node = played(running_plane)
    order = str(uuid4())
    wrong: list[dict[str, Any]] = [{}, {"progress": []}, {"progress": [{**told(order, "x", 1), "more": 1}]}]
    for body in wrong:
        assert node.node.post("/progress", json=body).status_code == 422


async def test_nothing_comes_between_the_pieces_of_a_long_message() -> None:
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def chunks() -> AsyncIterator[bytes]:
        while piece := await pieces.get():
            yield piece

    box = LetterBox(lambda _step: True)
    stream = with_progress(chunks(), box)
    pieces.put_nowait(b"data: begins, ")
    assert await anext(stream) == b"data: begins, "
    box.put([Step("t", "slice.apply", None, None, "link", 1, None, "2026-03-01T12:00:00Z")])
    further = asyncio.ensure_future(anext(stream))
    for _turn in range(10):
        await asyncio.sleep(0)
    assert not further.done(), "the step waits for the end of the message"
    pieces.put_nowait(b"ends\n\n")
    assert await further == b"ends\n\n"
    assert (await anext(stream)).startswith(b"event: progress\n")
    pieces.put_nowait(b"")
    assert [each async for each in stream] == []


def test_a_letter_box_keeps_the_newest_step_of_each_task() -> None:
    box = LetterBox(lambda step: step.task_id != "other")
    for task, name in (("a", "link"), ("b", "link"), ("a", "port"), ("other", "link")):
        box.put([Step(task, "slice.apply", None, None, name, 1, None, "2026-03-01T12:00:00Z")])
    said = asyncio.run(box.news()).decode()
    assert said.count("event: progress") == 2
    assert '"step":"port"' in said
