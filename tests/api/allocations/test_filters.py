"""The list of allocations by state and label: which ones it has, and how far one request reads."""

from collections.abc import Sequence
from typing import Any

import pytest

from control_plane.api.filters.allocations import WantedAllocations
from control_plane.api.filters.scanning import MAX_ROWS_READ, filtered
from control_plane.api.views.allocation_views import AllocationView
from events.values import AllocationId, Position
from read_models.allocations import Requested
from tests.api.node import admit, allocate
from tests.servers.plane import RunningPlane
from tests.waiting import until

TOTAL = 2 * MAX_ROWS_READ + 30
"""Number of allocations at the positions 1 to `TOTAL`; each seventh one is active."""


async def read(*, after: Position | None, limit: int) -> list[Requested]:
    begin = 1 if after is None else after + 1
    places = range(begin, min(begin + limit, TOTAL + 1))
    return [Requested(Position(each), AllocationId(str(each))) for each in places]


def identify(request: Requested) -> tuple[str, Position]:
    return request.allocation_id, request.position


async def view(requests: Sequence[Requested]) -> list[AllocationView]:
    return [_view(each) for each in requests]


def _view(request: Requested) -> AllocationView:
    """Return a view with only the fields that the filters read."""
    state = "released" if request.position % 7 else "active"
    fields: dict[str, Any] = {"id": request.allocation_id, "state": state, "labels": {}}
    return AllocationView.model_construct(**fields)


@pytest.mark.parametrize("limit", [1, 3, 50, 200, 500])
@pytest.mark.parametrize("state", [None, "active", "failed"])
async def test_pages_of_a_filtered_list_have_each_match_once_and_read_a_bounded_number_of_rows_per_request(
    limit: int, state: str | None
) -> None:
    wanted = WantedAllocations(frozenset(() if state is None else (state,)), frozenset())
    found, after, requests = list[int](), None, 0
    while True:
        page = await filtered(read, identify, view, wanted.condition, after=after, limit=limit)
        requests += 1
        found += [int(each.id) for each in page.items]
        assert len(page.items) <= limit
        if page.next_cursor is None:
            break
        assert after is None or int(page.next_cursor) > after
        assert int(page.next_cursor) - (after or 0) <= max(MAX_ROWS_READ, limit)
        after = Position(int(page.next_cursor))
    matching = {None: range(1, TOTAL + 1), "active": range(7, TOTAL + 1, 7), "failed": ()}[state]
    assert found == [*matching]
    assert requests >= TOTAL // MAX_ROWS_READ


def test_allocation_list_has_the_allocations_in_the_given_states_with_all_given_labels(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=4)
    made = {
        name: allocate(emptied_plane, labels=labels).json()["id"]
        for name, labels in {
            "plain": {},
            "vision": {"team": "vision"},
            "both": {"team": "vision", "run": "4"},
            "odd": {"a=b": "c"},
        }.items()
    }
    with emptied_plane.client() as admin:
        until(lambda: len(admin.get("/allocations").json()["items"]) == 4, "all allocations are listed")
        position = emptied_plane.last_position()
        assert admin.delete(f"/allocations/{made['both']}").is_success
        expected: dict[tuple[tuple[str, str], ...], set[str]] = {
            (("state", "placed"),): {"plain", "vision", "odd"},
            (("state", "placed"), ("state", "releasing")): {*made},
            (("label", "team=vision"),): {"vision", "both"},
            (("label", "team=vision"), ("label", "run=4")): {"both"},
            (("label", "team=vision"), ("state", "placed")): {"vision"},
            (("id", f"{made['both'][:8]}…{made['both'][-6:]}"),): {"both"},
            (("id", made["both"][:8]), ("label", "team=vision")): {"vision", "both"},
            (("id", made["plain"]), ("label", "team=vision")): set(),
            (("id", f"{made['both'][:8]}...{made['both'][-6:]}"), ("at", f"position:{position}")): {"both"},
            (("label", "team=vision"), ("state", "placed"), ("at", f"position:{position}")): {
                "vision",
                "both",
            },
            (("label", "a=b=c"),): {"odd"},
            (("label", "team=speech"),): set(),
        }
        for parameters, names in expected.items():
            listed = admin.get("/allocations", params=parameters).json()
            assert {each["id"] for each in listed["items"]} == {made[name] for name in names}, parameters
            assert listed["next_cursor"] is None
        for wrong in ({"label": "team"}, {"state": "gone"}, {"id": "alc-0"}, {"id": "n1"}):
            refused = admin.get("/allocations", params=wrong)
            assert refused.status_code == 422
            assert refused.json()["reasons"][0]["parameter"] in wrong
