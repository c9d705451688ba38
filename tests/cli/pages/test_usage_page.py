"""Text output of `sliceplane usage` and `sliceplane capacity`."""

from collections.abc import Callable

from tests.cli.control_plane import ScriptedPlane, document, page
from tests.cli.examples import ALLOCATION
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
AMOUNT = {"slot_seconds": "7200.000000", "price": "6.400000"}
USAGE = {
    "begin": None,
    "end": "2026-01-02T03:04:05Z",
    "position": 48213,
    "total": AMOUNT,
    "groups": [
        {"key": "vision", "amount": AMOUNT, "entries": 2},
        {"key": None, "amount": AMOUNT, "entries": 1},
    ],
}
ENTRY = {
    "kind": "metered",
    "allocation_id": ALLOCATION,
    "project": "default",
    "sku": "h200.one",
    "sku_version": 3,
    "price_per_hour": "3.20",
    "slot_count": 2,
    "labels": {},
    "starts_at": "2026-01-02T02:04:05Z",
    "ends_at": "2026-01-02T03:04:05Z",
    "running": True,
    "amount": AMOUNT,
    "events": [
        {"position": 12, "id": "019341f0-0000-7000-8000-000000000000", "type": "allocation.lease_granted"}
    ],
}


def test_usage_prints_the_total_with_its_position_and_one_line_for_each_group(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/usage", document(USAGE))
    out = sliceplane("usage", "show", "--group-by", "label:team").out
    assert "the beginning" in out
    assert "with the events up to position 48213" in out
    lines = [line.split() for line in out.splitlines()]
    assert lines[-3:] == [
        ["TEAM", "SLOT-SECONDS", "PRICE", "ENTRIES"],
        ["vision", "7200.000000", "6.400000", "2"],
        ["-", "7200.000000", "6.400000", "1"],
    ]
    assert plane.received[0].path.endswith("group_by=label%3Ateam")


def test_explained_usage_prints_each_entry_with_its_events(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/usage/entries", page(ENTRY))
    out = sliceplane("usage", "show", "--explain", "--project", "default").out
    for part in (ALLOCATION, "h200.one v3", "3.20", "(running)", "6.400000", "12 allocation.lease_granted"):
        assert part in out
    assert "project=default" in plane.received[0].path


SLOTS = {"sku": "lab.small", "free": 4, "claimed": 2, "quarantined": 0, "blocked": 1}


def test_capacity_prints_what_fits_and_the_slots_of_each_sku_by_status(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    unknown = {**SLOTS, "sku": "lab.old", "fits": None}
    plane.script("GET /v1/capacity", document({"skus": [{**SLOTS, "fits": 3}, unknown]}))
    plane.script("GET /v1/capacity/nodes", page({"node_id": "lab-a", "skus": [SLOTS]}))

    lines = [line.split() for line in sliceplane("capacity").out.splitlines()]
    of_nodes = sliceplane("capacity", "--by-node").out.splitlines()

    assert lines[1:] == [["lab.small", "3", "4", "2", "0", "1"], ["lab.old", "-", "4", "2", "0", "1"]]
    assert of_nodes[1].split() == ["lab-a", "lab.small", "4", "2", "0", "1"]
