"""Watching the log: in order, complete, and resumable after a lost connection."""

import itertools
from collections.abc import Iterator

from tests.servers.plane import RunningPlane


def events(plane: RunningPlane, path: str, count: int, **headers: str) -> list[tuple[int, str]]:
    """The first so many (position, type) of a stream of server-sent events."""
    with plane.client(**headers).stream("GET", path) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(itertools.islice(_parsed(answer.iter_lines()), count))


def _parsed(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    position = 0
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "id":
            position = int(value)
        if field == "event":
            yield position, value


def test_a_watch_tells_what_was_and_what_comes(running_plane: RunningPlane) -> None:
    for name in ("n1", "n2", "n3"):
        running_plane.client().post("/nodes", json={"id": name})
    seen = events(running_plane, "/events/watch", 4)
    assert [type_ for _, type_ in seen] == ["access.key_issued", *["node.expected"] * 3]
    resumed = events(running_plane, "/events/watch", 2, **{"Last-Event-ID": str(seen[1][0])})
    assert resumed == seen[2:]


def test_the_list_of_events_pages_through_all_of_them(running_plane: RunningPlane) -> None:
    client = running_plane.client()
    for name in ("n1", "n2", "n3"):
        client.post("/nodes", json={"id": name})
    seen = events(running_plane, "/events/watch", 4)
    pages, cursor = [], "0"
    while cursor is not None:
        page = client.get("/events", params={"limit": 3, "cursor": cursor}).json()
        pages += [(event["position"], event["type"]) for event in page["items"]]
        cursor = page["next_cursor"]
    assert pages == seen
