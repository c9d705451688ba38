"""The chart of a SKU has the numbers of its history as areas, stacked from claimed to free."""

from typing import Any

from starlette.requests import Request

from control_plane.web.capacity_chart import charts
from control_plane.web.rendering import page


def point(at: str, **skus: tuple[int, int]) -> dict[str, Any]:
    """Return a point with the free and claimed slots of SKUs."""
    listed = [
        {"sku": sku, "free": free, "claimed": claimed, "quarantined": 0, "blocked": 0}
        for sku, (free, claimed) in skus.items()
    ]
    return {"at": at, "position": 1, "skus": listed}


def test_areas_are_stacked_and_keep_each_number_until_the_next_point() -> None:
    [chart] = charts({"points": [point("a", s=(4, 0)), point("b", s=(3, 1)), point("c", s=(3, 1))]})
    assert (chart.sku, chart.most) == ("s", 4)
    claimed, free = chart.areas
    assert (claimed.status, free.status) == ("claimed", "free")
    assert claimed.points == "0,120 300,120 300,90 600,90 600,120 0,120"
    assert free.points == "0,0 600,0 600,90 300,90 300,120 0,120"
    assert [(at, each["free"], each["claimed"]) for at, each in chart.rows] == [("a", 4, 0), ("b", 3, 1)]
    assert chart.last["free"] == 3
    assert chart.has_history


def test_sku_without_slots_at_first_begins_with_zero() -> None:
    first, second = charts({"points": [point("a", s=(1, 0)), point("b", s=(1, 0), t=(2, 0))]})
    assert (first.sku, second.sku) == ("s", "t")
    assert [(at, each["free"]) for at, each in second.rows] == [("a", 0), ("b", 2)]


def test_history_without_slots_or_with_one_point_is_drawn() -> None:
    assert charts({"points": [point("a")]}) == []
    [chart] = charts({"points": [point("a", s=(2, 2))]})
    assert [each.status for each in chart.areas] == ["claimed", "free"]
    assert not chart.has_history


def test_overview_draws_a_chart_only_of_a_sku_with_history() -> None:
    found = charts(
        {
            "points": [
                point("2026-11-28T00:00:00Z", s=(1, 0)),
                point("2026-11-29T00:00:00Z", s=(0, 1), t=(1, 0)),
            ]
        }
    )
    user: dict[str, Any] = {"actor": "key:a", "role": "admin", "projects": None, "scopes": []}
    shown = page(
        Request({"type": "http", "path": "/ui/", "query_string": b"", "headers": []}),
        "overview.html",
        200,
        user=user,
        csrf="",
        api_urls=[],
        notice=None,
        at=None,
        capacity=found,
        **dict.fromkeys(("status", "drift", "allocations", "tasks", "events")),
    )
    text = bytes(shown.body).decode()
    assert text.count('class="chart"') == text.count("No history yet.") == 1
    assert 'aria-label="Slots of s by status over 24 hours, at most 1. Now: 1 claimed' in text
    assert 'role="img"' in text
    assert 'class="slots-claimed" points=' in text
