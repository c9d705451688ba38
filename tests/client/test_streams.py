"""Server-sent events: decoding from chunks of any size, resuming after a lost connection, and deadlines."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import Response
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from control_plane.client import calls, errors
from control_plane.client.streams import FIRST_PAUSE, QUIET_SECONDS, Following, Message, Messages
from tests.cli.control_plane import Reply, ScriptedPlane, problem, stream
from tests.cli.examples import BRING_UP, event
from tests.client.clients import AnyClient

WATCH = "GET /v1/events/watch"
GONE = problem(410, "cursor_expired", "the ledger holds nothing at 1.5")
AWAY = problem(503, "database_unavailable", "Postgres does not respond")
FIELDS = st.sampled_from(
    [
        "id: 1.7",
        "id",
        "event: x",
        "event:y",
        "data: {}",
        "data:\u2028a",
        "data",
        ": alive",
        "retry: 3",
        "other: 1",
        "",
        "",
    ]
)


def decoded(*chunks: bytes) -> list[Message]:
    messages = Messages()
    return [message for chunk in chunks for message in messages.feed(chunk)]


@given(st.lists(FIELDS), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_decoded_event_stream_messages_do_not_depend_on_how_the_stream_is_divided_into_chunks(
    lines: list[str], end: str, data: st.DataObject
) -> None:
    whole = "".join(f"{line}{end}" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    chunks = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert decoded(*chunks, b":\n") == decoded(whole, b":\n")


@given(st.lists(FIELDS), st.sampled_from(["\n", "\r\n", "\r"]))
def test_decoded_event_stream_messages_with_data_equal_those_of_the_httpx_sse_decoder(
    lines: list[str], end: str
) -> None:
    # The other decoder also returns a message that the end of the stream cuts off; these streams end after a message.
    whole = "".join(f"{line}{end}" for line in [*lines, "", ":"]).encode()
    response = Response(200, headers={"Content-Type": "text/event-stream"}, content=whole)
    expected = [(each.event, each.data, each.id) for each in EventSource(response).iter_sse() if each.data]
    found = [
        (each.event.decode() or "message", each.data.decode(), each.id)
        for each in decoded(whole, b"\n")
        if each.data
    ]
    assert found == expected


def test_event_stream_block_with_an_id_and_no_data_is_decoded_as_a_message_without_data() -> None:
    assert decoded(b"id: 1.900\n\n") == [Message(b"", b"", "1.900")]
    assert decoded(b": alive\n\n") == []


def resumed_from(plane: ScriptedPlane) -> list[str | None]:
    return [request.headers.get("Last-Event-ID") for request in plane.requests(WATCH)]


def test_reconnected_event_stream_continues_after_the_last_received_id_and_repeats_no_event(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(WATCH, stream(*BRING_UP[:2]), Reply(lose=True), AWAY, stream(*BRING_UP[1:], hold=True))
    reported: list[str] = []
    following = Following(on_lost=lambda _: reported.append("lost"), on_back=lambda: reported.append("back"))
    found = client.follow(calls.watch_events(), following, len(BRING_UP))
    assert [each.position for each in found] == [each["position"] for each in BRING_UP]
    assert resumed_from(plane) == [None, "1.2", "1.2", "1.2"]
    assert reported == ["lost", "back"]


def test_stream_ends_with_the_refusal_of_a_cursor_that_the_ledger_does_not_contain(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(WATCH, stream(*BRING_UP), GONE)
    with pytest.raises(errors.Gone):
        client.follow(calls.watch_events(), Following(retry_seconds=60), len(BRING_UP) + 1)


def test_event_stream_with_a_failed_first_connection_raises_an_error_at_once_unless_retries_are_requested(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(WATCH, Reply(lose=True), Reply(lose=True), stream(*BRING_UP, hold=True))
    with pytest.raises(errors.Unreachable):
        client.follow(calls.watch_events(), None, 1)
    assert len(client.follow(calls.watch_events(), Following(retry_seconds=60), 1)) == 1


def test_outage_that_lasts_longer_than_the_retries_ends_the_event_stream(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(WATCH, Reply(lose=True))
    with pytest.raises(errors.Unreachable):
        client.follow(calls.watch_events(), Following(retry_seconds=0.5), 1)
    assert len(plane.received) > 1


@pytest.mark.parametrize(
    "reply",
    [stream(*BRING_UP[:1], hold=True), stream(*BRING_UP[:1]), Reply(lose=True)],
    ids=["silent", "ending", "lost"],
)
def test_event_stream_with_a_deadline_ends_at_the_deadline_whatever_the_server_does(
    plane: ScriptedPlane, client: AnyClient, reply: Reply
) -> None:
    plane.script(WATCH, reply)
    began = time.monotonic()
    following = Following(retry_seconds=60, deadline=began + 1.5)
    with pytest.raises(errors.TimedOut):
        client.follow(calls.watch_events(), following, 2)
    assert 1.5 <= time.monotonic() - began < 10


def test_event_stream_without_data_until_its_deadline_is_not_reported_as_a_lost_connection(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script(WATCH, stream(*BRING_UP[:1], hold=True))
    lost: list[object] = []
    with pytest.raises(errors.TimedOut):
        client.follow(calls.watch_events(), Following(deadline=time.monotonic() + 1, on_lost=lost.append), 2)
    assert lost == []


def test_progress_messages_are_passed_to_the_callback_and_not_returned_as_events(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    progress = b'event: progress\ndata: {"step": "port"}\n\n'
    events = stream(*BRING_UP[:1], hold=True)
    plane.script(WATCH, Reply(progress + events.body, headers=events.headers, hold=True))
    steps: list[Any] = []
    following = Following(on_progress=lambda raw: steps.append(json.loads(raw)))
    assert len(client.follow(calls.watch_events(), following, 1)) == 1
    assert steps == [{"step": "port"}]


def test_response_that_is_not_an_event_stream_is_refused(plane: ScriptedPlane, client: AnyClient) -> None:
    plane.script(WATCH, Reply(b"<html>", headers={"Content-Type": "text/html"}))
    with pytest.raises(errors.UnexpectedResponse):
        client.follow(calls.watch_events(), None, 1)


def pauses(following: Following, count: int) -> Iterator[float]:
    for _ in range(count):
        yield following.pause(0.0)


def test_pauses_between_event_stream_connections_double_up_to_a_limit_and_begin_again_after_a_message() -> (
    None
):
    following = Following()
    assert [*pauses(following, 7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    following.take(Message(b"", b"", "1.1"))
    assert following.pause(0.0) == FIRST_PAUSE


def test_read_timeout_of_an_event_stream_becomes_shorter_before_its_deadline() -> None:
    following = Following(deadline=200.0)
    assert [following.read_seconds(now) for now in (0.0, 150.0, 199.0, 199.9)] == [
        QUIET_SECONDS,
        25.0,
        0.5,
        0.5,
    ]
    with pytest.raises(errors.TimedOut):
        following.read_seconds(200.0)


def test_event_stream_message_with_a_position_that_was_already_received_is_ignored() -> None:
    following = Following()
    first = Message(b"x", json.dumps(event(7, "x.y")).encode(), "1.7")
    assert following.take(first) == first.data
    assert following.take(first) is None
    assert following.headers["Last-Event-ID"] == "1.7"
