"""The chart of a SKU has the numbers of its history as areas, stacked from claimed to free."""

from typing import Any

from control_plane.web.capacity_chart import charts


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
