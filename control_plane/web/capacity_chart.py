"""Charts of the slots of each SKU by status over time: stacked areas, drawn as steps, because a number of slots stays
the same until an event changes it. The page shows the same numbers as a table.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

WIDTH: Final = 600
BAR_WIDTH: Final = 40
HEIGHT: Final = 120
"""Widths of a chart and of the bar beside it, and height of both, in the units of their SVG images."""
STATUSES: Final = ("claimed", "quarantined", "blocked", "free")
"""The statuses of slots, in the order of their areas from the bottom of a chart to its top."""


class Area(NamedTuple):
    """The area of one status in a chart. `points` are the corners of a polygon, in the format of the SVG attribute
    `points`.
    """

    status: str
    points: str


class Chart(NamedTuple):
    """The chart of one SKU: its numbers of slots by status at several times.

    `most` is the largest total number of slots at one of these times, at least 1; it is the top of the chart. `begin`
    and `end` are the first and the last time. `areas` are the areas of the statuses from bottom to top, without
    statuses that no slot has. `rows` are the numbers by status, each row with its time, at the first time and at each
    later one at which a number differs from that of the time before. `now` are the numbers by status now: free slots in
    which no slice can be placed now are blocked. `bar` are the areas of these numbers. `has_history` is False if the
    SKU had no slots before the last time, so that its areas have no width.
    """

    sku: str
    most: int
    begin: str
    end: str
    areas: tuple[Area, ...]
    rows: tuple[tuple[str, Mapping[str, int]], ...]
    now: Mapping[str, int]
    bar: tuple[Area, ...]
    has_history: bool


def charts(history: Mapping[str, Any], blocked: Mapping[str, int]) -> list[Chart]:
    """Return the charts of a response of `GET /v1/capacity/history` that ends now, one for each SKU in the response.
    `blocked` is the number of free slots of each SKU in which no slice can be placed now, from `GET /v1/status`.
    """
    points = history["points"]
    skus = sorted({each["sku"] for point in points for each in point["skus"]})
    times = [point["at"] for point in points]
    return [_chart(sku, times, [_numbers(each, sku) for each in points], blocked.get(sku, 0)) for sku in skus]


def _numbers(point: Mapping[str, Any], sku: str) -> dict[str, int]:
    found = next((each for each in point["skus"] if each["sku"] == sku), None)
    return {each: 0 if found is None else found[each] for each in STATUSES}


def _now(last: Mapping[str, int], blocked: int) -> dict[str, int]:
    """Return the numbers by status now. The last numbers of a history do not depend on nodes; here, all `blocked` free
    slots are counted as blocked, including those that the history counts as blocked already.
    """
    added = min(last["free"], max(0, blocked - last["blocked"]))
    return {**last, "blocked": last["blocked"] + added, "free": last["free"] - added}


def _chart(sku: str, times: Sequence[str], numbers: Sequence[Mapping[str, int]], blocked: int) -> Chart:
    most = max(1, *(sum(each.values()) for each in numbers))
    changed = [
        (time, each)
        for index, (time, each) in enumerate(zip(times, numbers, strict=True))
        if index == 0 or each != numbers[index - 1]
    ]
    now = _now(numbers[-1], blocked)
    has_history = any(sum(each.values()) for each in numbers[:-1])
    areas, bar = _areas(numbers, most, WIDTH), _areas((now, now), most, BAR_WIDTH)
    return Chart(sku, most, times[0], times[-1], areas, tuple(changed), now, bar, has_history)


def _areas(numbers: Sequence[Mapping[str, int]], most: int, width: int) -> tuple[Area, ...]:
    """Return the areas of the statuses from bottom to top. `most` is the number of slots at the top of the image, and
    `width` its width.
    """
    areas, below = list[Area](), [0] * len(numbers)
    for status in STATUSES:
        above = [low + each[status] for low, each in zip(below, numbers, strict=True)]
        # A status without slots has no area.
        if above != below:
            corners = [*_steps(above, most, width), *reversed(_steps(below, most, width))]
            areas.append(Area(status, " ".join(f"{x:g},{y:g}" for x, y in corners)))
        below = above
    return tuple(areas)


def _steps(heights: Sequence[int], most: int, width: int) -> list[tuple[float, float]]:
    """Return the corners of a line that keeps each number of slots in `heights` until the next one, as coordinates in
    the SVG image. `most` is the number of slots at the top of the image, and `width` its width.
    """
    across = width / max(1, len(heights) - 1)
    found = list[tuple[float, float]]()
    for index, height in enumerate(heights):
        y = round(HEIGHT * (1 - height / most), 2)
        if index > 0 and found[-1][1] != y:
            found.append((round(index * across, 2), found[-1][1]))
        if index == 0 or found[-1][1] != y or index == len(heights) - 1:
            found.append((round(index * across, 2), y))
    return found
