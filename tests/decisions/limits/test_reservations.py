"""Decisions about reservations: what is kept for others, what is missing, and how many slots may be taken."""

import pytest

from control_plane.decisions.reservations import Reservation, Supply, fits, permits
from events.values import ProjectId, SkuName

SMALL = SkuName("lab.small")
RED, BLUE, GREEN = ProjectId("red"), ProjectId("blue"), ProjectId("green")


def supply(free: int, *reservations: tuple[ProjectId, int, int]) -> Supply:
    return Supply(
        SMALL, free, tuple(Reservation(name, SMALL, slots, used) for name, slots, used in reservations)
    )


@pytest.mark.parametrize(
    ("found", "project", "most"),
    [
        (supply(5), GREEN, 99),
        (supply(5, (RED, 3, 0)), GREEN, 2),
        (supply(5, (RED, 3, 2)), GREEN, 4),
        (supply(5, (RED, 3, 7)), GREEN, 99),
        (supply(5, (RED, 3, 0)), RED, 99),
        (supply(5, (RED, 3, 0), (BLUE, 1, 0)), RED, 4),
        (supply(5, (RED, 3, 0), (BLUE, 1, 0)), GREEN, 1),
    ],
    ids=["none", "unused", "partly_used", "beyond", "own", "own_and_others", "two"],
)
def test_project_may_take_the_free_slots_that_other_projects_have_not_reserved(
    found: Supply, project: ProjectId, most: int
) -> None:
    assert [count for count in range(1, 100) if permits(found, project, count)] == [*range(1, most + 1)]


def test_project_may_take_no_slot_while_fewer_slots_are_free_than_other_projects_have_reserved() -> None:
    assert not permits(supply(2, (RED, 3, 0)), GREEN, 0)
    assert not permits(supply(2, (RED, 3, 0)), GREEN, 1)


def test_reservations_that_together_exceed_the_free_slots_each_show_how_many_slots_they_lack() -> None:
    found = supply(3, (RED, 3, 1), (BLUE, 4, 0))
    assert [found.short_by(each) for each in found.reservations] == [2, 3]
    assert [supply(6, (RED, 3, 1), (BLUE, 4, 0)).short_by(each) for each in found.reservations] == [0, 0]


@pytest.mark.parametrize(
    ("free", "reserved", "count"),
    [
        ({"a": 3, "b": 2}, [], 5),
        ({"a": 3, "b": 2}, [({"a"}, 1)], 3),
        ({"a": 3, "b": 2}, [({"a", "b"}, 4)], 4),
        ({"a": 3, "b": 2}, [({"a", "b"}, 4), ({"b"}, 0)], 3),
        ({"a": 3}, [({"a"}, -2)], 0),
        ({}, [({"a"}, 1)], 0),
    ],
    ids=["unreserved", "one_class", "both_classes", "two_skus", "short", "nothing_free"],
)
def test_number_of_slots_that_fit_excludes_the_reserved_slots_of_each_class(
    free: dict[str, int], reserved: list[tuple[set[str], int]], count: int
) -> None:
    assert fits(free, reserved) == count
