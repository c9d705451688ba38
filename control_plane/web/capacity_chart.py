"""Charts of the slots of each SKU by status over time: stacked areas, drawn as steps, because a number stays until it
changes. The page shows the same numbers as a table.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

WIDTH: Final = 600
HEIGHT: Final = 120
STATUSES: Final = ("claimed", "quarantined", "blocked", "free")
"""From the bottom of a chart to its top."""


class Area(NamedTuple):
    """The area of a status: the corners of a polygon, in the form of the attribute `points` of SVG."""

    status: str
    points: str


class Chart(NamedTuple):
    """The chart of a SKU. `most` is the largest number of slots, which is the top of the chart. `rows` are the numbers
    at the points at which one of them changes, and `last` those of the last point.
    """

    sku: str
    most: int
    areas: tuple[Area, ...]
    rows: tuple[tuple[str, Mapping[str, int]], ...]
    last: Mapping[str, int]


def charts(history: Mapping[str, Any]) -> list[Chart]:
    """Return the chart of each SKU that ever had a slot in a response of `/v1/capacity/history`."""
    points = history["points"]
    skus = sorted({each["sku"] for point in points for each in point["skus"]})
    times = [point["at"] for point in points]
    return [_chart(sku, times, [_numbers(point, sku) for point in points]) for sku in skus]


def _numbers(point: Mapping[str, Any], sku: str) -> dict[str, int]:
    found = next((each for each in point["skus"] if each["sku"] == sku), None)
    return {each: 0 if found is None else found[each] for each in STATUSES}


def _chart(sku: str, times: Sequence[str], numbers: Sequence[Mapping[str, int]]) -> Chart:
    most = max(1, *(sum(each.values()) for each in numbers))
    areas, below = list[Area](), [0] * len(numbers)
    for status in STATUSES:
        above = [low + each[status] for low, each in zip(below, numbers, strict=True)]
        # A status without slots has no area.
        if above != below:
            corners = [*_steps(above, most), *reversed(_steps(below, most))]
            areas.append(Area(status, " ".join(f"{x:g},{y:g}" for x, y in corners)))
        below = above
    changed = [
        (time, each)
        for index, (time, each) in enumerate(zip(times, numbers, strict=True))
        if index == 0 or each != numbers[index - 1]
    ]
    return Chart(sku, most, tuple(areas), tuple(changed), numbers[-1])


def _steps(heights: Sequence[int], most: int) -> list[tuple[float, float]]:
    """Return the corners of a line that keeps each height until the next point."""
    across = WIDTH / max(1, len(heights) - 1)
    found = list[tuple[float, float]]()
    for index, height in enumerate(heights):
        y = round(HEIGHT * (1 - height / most), 2)
        if index > 0 and found[-1][1] != y:
            found.append((round(index * across, 2), found[-1][1]))
        if index == 0 or found[-1][1] != y or index == len(heights) - 1:
            found.append((round(index * across, 2), y))
    return found
