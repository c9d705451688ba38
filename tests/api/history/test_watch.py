"""Watches of the ledger: events arrive completely and in order, and a watch resumes after a lost connection (P15)."""

from uuid import uuid4

import httpx
import pytest

from tests.api.streams import Event, open_stream, watch_events
from tests.servers.plane import EVENTS_OF_THE_LAB, RunningPlane


def register_nodes(plane: RunningPlane, *names: str) -> None:
    for name in names:
        assert plane.client().post("/nodes", json={"id": name}).status_code == 201


def cursors(events: list[Event]) -> list[str]:
    return [event.id for event in events]


def test_watch_returns_past_events_and_then_new_ones(running_plane: RunningPlane) -> None:
    register_nodes(running_plane, "n1")
    with open_stream(running_plane, "/events/watch") as stream:
        seen = stream.take(len(EVENTS_OF_THE_LAB) + 3)
        register_nodes(running_plane, "n2", "n3")
        seen += stream.take(2)
    assert [event.type for event in seen] == [
        *EVENTS_OF_THE_LAB,
        "access.key_issued",
        "project.created",
        *["node.registered"] * 3,
    ]
    assert [event.data["stream"] for event in seen[-3:]] == ["node-n1", "node-n2", "node-n3"]
    assert cursors(seen) == [f"{event.data['epoch']}.{event.data['position']}" for event in seen]


def test_interrupted_watch_resumes_after_the_last_received_event(running_plane: RunningPlane) -> None:
    register_nodes(running_plane, "n1", "n2", "n3")
    seen = watch_events(running_plane, "/events/watch", 4)
    assert watch_events(running_plane, "/events/watch", 2, last_event_id=seen[1].id) == seen[2:]
    assert watch_events(running_plane, f"/events/watch?after={seen[1].id}", 2) == seen[2:]
    assert watch_events(running_plane, "/events/watch?after=position:0", 4) == seen


def test_last_event_id_header_takes_precedence_over_the_after_parameter(running_plane: RunningPlane) -> None:
    """A browser that reconnects repeats its first URL, so the header has the newer position."""
    register_nodes(running_plane, "n1", "n2", "n3")
    seen = watch_events(running_plane, "/events/watch", 4)
    path = f"/events/watch?after={seen[0].id}"
    assert watch_events(running_plane, path, 1, last_event_id=seen[2].id) == seen[3:]


def test_event_pages_together_contain_every_event(running_plane: RunningPlane) -> None:
    client = running_plane.client()
    register_nodes(running_plane, "n1", "n2", "n3")
    seen = watch_events(running_plane, "/events/watch", len(EVENTS_OF_THE_LAB) + 5)
    pages, cursor = [], "position:0"
    while cursor is not None:
        page = client.get("/events", params={"limit": 3, "cursor": cursor}).json()
        pages += page["items"]
        cursor = page["next_cursor"]
    assert pages == [event.data for event in seen]


def test_event_list_contains_every_event_committed_before_the_request(running_plane: RunningPlane) -> None:
    for number in range(20):
        register_nodes(running_plane, f"n{number}")
        items = running_plane.client().get("/events").json()["items"]
        assert items[-1]["stream"] == f"node-n{number}"


def test_event_filters_return_only_matching_events(running_plane: RunningPlane) -> None:
    register_nodes(running_plane, "n1", "n2")
    everything = running_plane.client().get("/events").json()["items"]
    second = everything[-1]
    picks = {
        "stream": "node-n2",
        "type": "node.registered",
        "actor": second["actor"],
        "correlation": second["correlation_id"],
        "id": second["id"],
    }
    for name, value in picks.items():
        matching = [
            each for each in everything if each[{"correlation": "correlation_id"}.get(name, name)] == value
        ]
        assert 0 < len(matching) < len(everything)
        listed = running_plane.client().get("/events", params={name: value}).json()
        assert listed == {"items": matching, "next_cursor": None}
        received = watch_events(
            running_plane, f"/events/watch?{httpx.QueryParams({name: value})}", len(matching)
        )
        assert [event.data for event in received] == matching
    assert running_plane.client().get("/events?project=unused").json()["items"] == []
    for actor in ("service-account:trainer-2cde", "user:corp/alice", "system:ssh-gateway", "bench"):
        assert running_plane.client().get("/events", params={"actor": actor}).json()["items"] == []


def test_watch_with_a_filter_returns_only_matching_new_events(running_plane: RunningPlane) -> None:
    with open_stream(
        running_plane, "/events/watch?stream=node-n2&stream=node-n4&type=node.registered"
    ) as stream:
        register_nodes(running_plane, "n1", "n2", "n3", "n4")
        assert [event.data["stream"] for event in stream.take(2)] == ["node-n2", "node-n4"]


def test_watch_with_invalid_filters_is_refused_with_every_reason(shared_plane: RunningPlane) -> None:
    wrong = "stream=&stream=Node&type=node.exploded&project=A%20B&actor=&correlation=7&after=yesterday"
    for path in ("/events", "/events/watch"):
        answer = shared_plane.client().get(f"{path}?{wrong}")
        assert answer.status_code == 422
        found = [reason["parameter"] for reason in answer.json()["reasons"]]
        assert sorted(found) == ["actor", "after", "correlation", "project", "stream", "stream", "type"]


@pytest.mark.parametrize(
    "cursor", ["", "7", "1.", ".7", "1.7.7", "-1.7", "1.-7", "position:", "position:x", "1.٧"]
)
def test_invalid_event_cursor_is_refused(shared_plane: RunningPlane, cursor: str) -> None:
    for path in ("/events", "/events/watch"):
        answer = shared_plane.client().get(path, params={"after": cursor})
        assert answer.status_code == 422
        assert "position:N" in answer.json()["detail"]


@pytest.mark.parametrize(
    "cursor", ["1.999999", "position:999999", "7.1", "0.1", "999999999.999999999999999999"]
)
def test_event_cursor_beyond_the_ledger_is_refused_as_expired(
    shared_plane: RunningPlane, cursor: str
) -> None:
    for path, headers in (
        (f"/events?after={cursor}", {}),
        (f"/events?cursor={cursor}", {}),
        (f"/events/watch?after={cursor}", {}),
        ("/events/watch", {"Last-Event-ID": cursor}),
    ):
        answer = shared_plane.client(**headers).get(path)
        assert answer.status_code == 410
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/gone"
        [reason] = answer.json()["reasons"]
        assert reason["code"] == "cursor_expired"
        assert "begin again without a cursor" in reason["message"]


def test_watch_of_an_unknown_allocation_returns_404(shared_plane: RunningPlane) -> None:
    for name in ("nonsense", "alc-00000000000000000000000000"):
        for path in ("events", "watch"):
            assert shared_plane.client().get(f"/allocations/{name}/{path}").status_code == 404


def test_concurrent_watches_return_identical_events(running_plane: RunningPlane) -> None:
    names = [f"n{uuid4().hex[:8]}" for _ in range(12)]
    with (
        open_stream(running_plane, "/events/watch") as first,
        open_stream(running_plane, "/events/watch") as second,
    ):
        register_nodes(running_plane, *names)
        assert first.take(13) == second.take(13) == watch_events(running_plane, "/events/watch", 13)
