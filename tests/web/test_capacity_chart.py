"""The chart of a SKU has the numbers of its history as areas, stacked from claimed to free."""

import re
from typing import Any

import pytest
from starlette.requests import Request

from control_plane.web.capacity_chart import Chart, charts
from control_plane.web.rendering import STATIC, page


def point(at: str, **skus: tuple[int, int]) -> dict[str, Any]:
    """Return a point with the free and claimed slots of SKUs."""
    listed = [
        {"sku": sku, "free": free, "claimed": claimed, "quarantined": 0, "blocked": 0}
        for sku, (free, claimed) in skus.items()
    ]
    return {"at": at, "position": 1, "skus": listed}


def test_areas_are_stacked_and_keep_each_number_until_the_next_point() -> None:
    [chart] = charts({"points": [point("a", s=(4, 0)), point("b", s=(3, 1)), point("c", s=(3, 1))]}, {})
    assert (chart.sku, chart.most) == ("s", 4)
    claimed, free = chart.areas
    assert (claimed.status, free.status) == ("claimed", "free")
    assert claimed.points == "0,120 300,120 300,90 600,90 600,120 0,120"
    assert free.points == "0,0 600,0 600,90 300,90 300,120 0,120"
    assert [(at, each["free"], each["claimed"]) for at, each in chart.rows] == [("a", 4, 0), ("b", 3, 1)]
    assert (chart.now["free"], chart.now["blocked"]) == (3, 0)
    assert chart.has_history
    assert (chart.begin, chart.end) == ("a", "c")


def test_bar_beside_a_chart_has_the_numbers_of_now_on_the_same_scale() -> None:
    history = {"points": [point("a", s=(4, 0)), point("b", s=(3, 1))]}
    [chart] = charts(history, {"s": 1})
    assert [each.status for each in chart.areas] == ["claimed", "free"]
    assert [(each.status, each.points.split()[0]) for each in chart.bar] == [
        ("claimed", "0,90"),
        ("blocked", "0,60"),
        ("free", "0,0"),
    ]


def test_free_slots_in_which_nothing_can_be_placed_are_blocked_now_but_not_in_the_history() -> None:
    history = {"points": [point("a", s=(4, 0)), point("b", s=(3, 1))]}
    [chart] = charts(history, {"s": 2, "t": 1})
    assert (chart.now["free"], chart.now["blocked"], chart.now["claimed"]) == (1, 2, 1)
    assert [each["blocked"] for _, each in chart.rows] == [0, 0]
    history["points"][1]["skus"][0]["blocked"] = 2
    assert charts(history, {"s": 2})[0].now["free"] == 3, (
        "slots that the history has as blocked are not counted twice"
    )


def test_sku_without_slots_at_first_begins_with_zero() -> None:
    first, second = charts({"points": [point("a", s=(1, 0)), point("b", s=(1, 0), t=(2, 0))]}, {})
    assert (first.sku, second.sku) == ("s", "t")
    assert [(at, each["free"]) for at, each in second.rows] == [("a", 0), ("b", 2)]


def test_history_without_slots_or_with_one_point_is_drawn() -> None:
    assert charts({"points": [point("a")]}, {}) == []
    [chart] = charts({"points": [point("a", s=(2, 2))]}, {})
    assert [each.status for each in chart.areas] == ["claimed", "free"]
    assert not chart.has_history


def overview(capacity: list[Chart], **shown_too: Any) -> str:
    """Return the overview with charts and the parts in `shown_too`, without its other parts."""
    user: dict[str, Any] = {"actor": "key:a", "role": "admin", "projects": None, "scopes": []}
    user["failed_tasks_kept_seconds"] = 7 * 86400
    shown = page(
        Request({"type": "http", "path": "/ui/", "query_string": b"", "headers": []}),
        "overview.html",
        200,
        user=user,
        csrf="",
        api_urls=[],
        notice=None,
        at=None,
        capacity=capacity,
        **dict.fromkeys(
            ("status", "concerns", "slots", "blocked_by", "drift", "allocations", "tasks", "changes")
        )
        | shown_too,
    )
    return bytes(shown.body).decode()


def test_overview_draws_a_chart_only_of_a_sku_with_history() -> None:
    found = charts(
        {
            "points": [
                point("2026-11-28T00:00:00Z", s=(1, 0)),
                point("2026-11-29T00:00:00Z", s=(0, 1), t=(1, 0)),
            ]
        },
        {},
    )
    text = overview(found)
    assert text.count("No history yet.") == 1
    assert text.count('class="chart"') == 2, "the areas of a SKU, and the bar of the present"
    assert '<div class="scale" aria-hidden="true"><span>1</span><span>0</span></div>' in text
    assert re.search(
        r'class="times"><time[^>]*>2026-11-28 00:00:00</time><time[^>]*>2026-11-29 00:00:00<', text
    )
    assert 'aria-label="Slots of s by status over 24 hours, at most 1. Now: 1 claimed' in text
    assert 'role="img"' in text
    assert 'class="slots-claimed" points=' in text


def test_each_area_of_a_chart_and_its_key_in_the_legend_differ_without_colour() -> None:
    sku = {"sku": "s", "free": 1, "claimed": 1, "quarantined": 1, "blocked": 1}
    points = [{"at": f"2026-11-2{day}T00:00:00Z", "position": 1, "skus": [sku]} for day in (8, 9)]
    text = overview(charts({"points": points}, {}))
    for status in ("quarantined", "blocked"):
        assert text.count(f'<pattern id="pattern-{status}"') == 1
        assert text.count(f'fill="url(#pattern-{status})" points=') == 2, "the area of the chart, and the bar"
        assert text.count(f'fill="url(#pattern-{status})" width=') == 1, "the key of the legend"
    for status in ("free", "claimed"):
        assert f"pattern-{status}" not in text, "areas without a pattern differ in lightness"


def test_overview_without_concerns_states_that_nothing_needs_attention() -> None:
    status: dict[str, Any] = {"checks": [], "nodes": {}}
    assert "Nothing needs attention." in overview([], status=status, concerns=[], slots={})


def test_overview_states_how_many_failed_tasks_there_are_and_for_how_long_they_are_listed() -> None:
    task: dict[str, Any] = {
        "id": "t" * 32, "state": "failed", "kind": "slice.apply", "node_id": "n1", "slot_id": None, "attempt": None, "reason": None,
        "progress": None, "created_at": "2026-11-28T00:00:00Z",
    }  # fmt: skip
    for failed, stated in ((19, "The newest 8 of 19 are shown."), (None, "The newest 8 are shown.")):
        text = overview([], tasks=[task] * 8, failed_tasks=failed)
        assert f"{stated} Failed tasks are listed for 7 days after their end" in text


@pytest.mark.parametrize("theme", [0, 1])
def test_free_and_claimed_areas_differ_in_lightness_in_both_themes(theme: int) -> None:
    style = (STATIC / "console.css").read_text()
    colours = [re.findall(rf"--{name}: #(\w{{6}});", style)[theme] for name in ("good-back", "used")]
    darker, lighter = sorted(luminance(each) for each in colours)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5
    assert re.search(r"polygon\.slots-free \{ fill: var\(--good-back\)", style)
    assert re.search(r"\.slots-claimed \{ fill: var\(--used\)", style)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
