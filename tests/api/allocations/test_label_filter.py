"""The list of allocations can be filtered by labels, now and at a past time. Its pages have no gaps or repetitions."""

from typing import Any

from tests.api.access.principals import create_project
from tests.api.node import admit, allocate
from tests.servers.plane import RunningPlane
from tests.waiting import until


def listed(plane: RunningPlane, *labels: str, **parameters: Any) -> list[str]:
    """Return the ids of all allocations with these labels, page by page."""
    found, cursor = list[str](), None
    while True:
        query = {"label": labels, "cursor": cursor, **parameters}
        answer = plane.client().get("/allocations", params={k: v for k, v in query.items() if v is not None})
        assert answer.is_success, answer.text
        found += [each["id"] for each in answer.json()["items"]]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


def test_list_of_allocations_has_only_those_with_all_labels_of_the_filter(
    emptied_plane: RunningPlane,
) -> None:
    plane = emptied_plane
    admit(plane, "n1", slots=8)
    create_project(plane, "other")
    given: list[dict[str, Any]] = [
        {"labels": {"team": "a", "role": "db"}},
        {"labels": {"team": "a"}},
        {"labels": {"team": "b", "role": "db"}},
        {"labels": {"team": "a"}, "project": "other"},
        {"labels": {"team": "a=b", "team=a": "b"}},
        {},
    ]
    names = [allocate(plane, **each).json()["id"] for each in given]
    until(lambda: len(listed(plane)) == len(given), "the projector has listed all allocations")
    assert listed(plane, "team=a") == [names[3], names[1], names[0]]
    assert listed(plane, "team=a", limit=1) == [names[3], names[1], names[0]]
    assert listed(plane, "team=a", limit=1, order="asc") == [names[0], names[1], names[3]]
    assert listed(plane, "team=a", project="default") == [names[1], names[0]]
    assert listed(plane, "team=a", "role=db") == [names[0]]
    assert listed(plane, "team=a=b") == [names[4]]
    assert listed(plane, "team=c") == []

    [requested] = plane.rows(
        "select position from ledger.event where stream_id = %(stream)s and version = 1",
        stream=f"allocation-{names[1]}",
    )
    assert listed(plane, "team=a", at=f"position:{requested[0]}") == [names[1], names[0]]
