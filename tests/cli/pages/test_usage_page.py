"""Text output of `sliceplane usage` and `sliceplane capacity`."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.control_plane import Reply, ScriptedPlane, document, page
from tests.cli.examples import ALLOCATION
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
AMOUNT = {"slot_seconds": "7200.000000", "price": "6.400000"}
USAGE = {
    "period": None,
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
    "id": None,
    "billing_period": None,
    "service_period": None,
    "corrects": None,
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


CORRECTION = {
    **ENTRY,
    "kind": "re_entry",
    "id": f"2026-12/2026-11/{ALLOCATION}/re_entry",
    "billing_period": "2026-12",
    "service_period": "2026-11",
    "corrects": f"2026-11/2026-11/{ALLOCATION}/metered",
}
OPEN_PERIOD = {
    "name": "open",
    "state": "open",
    "starts_at": "2026-12-01T00:00:00Z",
    "ends_at": "2027-01-01T00:00:00Z",
    "through": None,
    "position": None,
    "closed_at": None,
    "closed_by": None,
}
CLOSED_PERIOD = {
    "name": "2026-11",
    "state": "closed",
    "starts_at": "2026-11-01T00:00:00Z",
    "ends_at": "2026-12-01T00:00:00Z",
    "through": 48213,
    "position": 48300,
    "closed_at": "2026-12-01T08:00:00Z",
    "closed_by": "key:admin",
}
BILL = {**CLOSED_PERIOD, "metered": AMOUNT, "corrections": AMOUNT, "total": AMOUNT}


def test_entries_of_a_billing_period_name_the_period_that_they_correct(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/usage/entries", page(CORRECTION))
    out = sliceplane("usage", "show", "--explain", "--period", "2026-12").out
    assert "re-entry of 2026-11" in out
    assert "period=2026-12" in plane.received[0].path


def test_billing_periods_are_listed_with_their_state_and_position(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/usage/periods", page(CLOSED_PERIOD, OPEN_PERIOD))
    lines = sliceplane("usage", "periods", "list").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["2026-11", "closed"], ["open", "open"]]
    assert "48213" in lines[1]
    assert "by key:admin" in lines[1]


def test_billing_period_is_closed_with_the_given_times_and_printed_with_its_totals(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/usage/periods/2026-11/close", document(BILL))
    out = sliceplane("usage", "periods", "close", "2026-11").out
    assert json.loads(plane.received[0].body) == {}
    for part in ("event 48300", "up to position 48213", "7200.000000 slot-seconds, price 6.400000"):
        assert part in out
    times = ("--from", "2026-11-01T00:00:00Z", "--to", "2026-12-01T00:00:00Z")
    sliceplane("usage", "periods", "close", "2026-11", *times)
    assert json.loads(plane.received[1].body) == {
        "starts_at": "2026-11-01T00:00:00Z",
        "ends_at": "2026-12-01T00:00:00Z",
    }


def test_export_is_written_into_a_new_file_only(
    plane: ScriptedPlane, sliceplane: Run, tmp_path: Path
) -> None:
    plane.script("GET /v1/usage/export", Reply(b"entry_id\r\n"))
    file = tmp_path / "bill.csv"
    arguments = ("usage", "export", str(file), "--format", "focus", "--period", "2026-11")
    assert sliceplane(*arguments).code == 0
    assert file.read_bytes() == b"entry_id\r\n"
    assert set(plane.received[0].path.partition("?")[2].split("&")) == {"period=2026-11", "format=focus"}
    again = sliceplane(*arguments)
    assert (again.code, "exists already" in again.err) == (2, True)


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


def test_history_of_the_capacity_prints_one_line_for_each_point_of_a_sku(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    other = {**SLOTS, "sku": "lab.big"}
    points = [
        {"at": "2026-01-02T03:00:00Z", "position": 7, "skus": [SLOTS]},
        {"at": "2026-01-02T03:30:00Z", "position": 9, "skus": [other, SLOTS]},
    ]
    begin, end = (each["at"] for each in points)
    answer = {"begin": begin, "end": end, "step_seconds": 1800, "node_id": None, "points": points}
    plane.script("GET /v1/capacity/history", document(answer))
    arguments = ("--from", str(begin), "--step", "30m", "--sku", "lab.small", "--node", "n1")
    lines = sliceplane("capacity", "history", *arguments).out.splitlines()
    assert len(lines) == 3
    assert all(line.split()[-5:] == ["lab.small", "4", "2", "0", "1"] for line in lines[1:])
    asked = set(plane.received[0].path.partition("?")[2].split("&"))
    assert {"step=1800", "node=n1"} <= asked
