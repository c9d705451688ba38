"""A client of server-sent events (WHATWG HTML, section 9.2)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from tests.servers.plane import RunningPlane


class Event(NamedTuple):
    """Server-sent event. `id` is the newest id in the stream up to and including this event."""

    id: str
    type: str
    data: dict[str, Any]


class Stream:
    """Open stream of server-sent events. `last_event_id` is the id that a client sends when it reconnects."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.last_event_id = ""
        self.comments: list[str] = []

    def take(self, count: int) -> list[Event]:
        """Return the next `count` events of the stream."""
        return [self.next() for _ in range(count)]

    def next(self) -> Event:
        """Return the next event of the stream. Raises `EOFError` when the stream ends."""
        while True:
            fields = self.block()
            if "data" in fields:
                return Event(self.last_event_id, fields["event"], json.loads(fields["data"]))

    def block(self) -> dict[str, str]:
        """Read one message, which ends with an empty line, and return its fields by name."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line:
                self.last_event_id = fields.get("id", self.last_event_id)
                return fields
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
            else:
                self.comments.append(value.strip())
        raise EOFError("the stream ended")


@contextmanager
def open_stream(
    plane: RunningPlane, path: str, last_event_id: str | None = None, **headers: str
) -> Iterator[Stream]:
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    with plane.client(**headers) as client, client.stream("GET", path) as answer:
        assert answer.status_code == httpx.codes.OK, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer.iter_lines())


def watch_events(plane: RunningPlane, path: str, count: int, last_event_id: str | None = None) -> list[Event]:
    """Open the event stream at `path`, and return its first `count` events."""
    with open_stream(plane, path, last_event_id) as stream:
        return stream.take(count)
