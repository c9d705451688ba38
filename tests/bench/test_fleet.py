"""The fleet benchmark: a run with a tiny fleet, and checks that name each lost or duplicated object."""

from collections import Counter
from pathlib import Path

import pytest

from bench.fleet import checks
from bench.fleet import fleet as bench
from bench.fleet.fleet import Size, fleet
from bench.fleet.nodes import NodeState
from bench.harness.measure import Round
from bench.harness.rounds import KeptRounds, take_rounds
from tests.bench.test_bench import discard

TIMELINE = [*checks.TIMELINE]
CARRIED = {"n1/0": 2, "n1/1": 1}
MACHINES = ("a", "b", "c")
DONE = {
    **{f"{effect} slice0": 2 for effect in checks.ONCE_PER_SLICE},
    **{f"{effect} slice1": 1 for effect in checks.ONCE_PER_SLICE},
    **{f"{effect} {machine}": 1 for effect in ("machine.start", "machine.destroy") for machine in MACHINES},
}


async def test_fleet_benchmark_with_three_nodes_loses_and_duplicates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "IDLE_SECONDS", 0.2)
    [done] = await take_rounds(
        fleet([Size(nodes=3, cycles=2)], slots=2),
        KeptRounds(tmp_path / "kept", "tiny"),
        resume=False,
        show=discard,
    )
    assert (done["completed"], len(done["active"]), len(done["released"])) == ([12.0], 12, 12)
    assert {name for name in done if name.startswith("cost.")} == {
        f"cost.{name}" for name in ("api", "dispatcher", "projector", "sealer", "postgres", "redis", "agents")
    }
    assert sum(done[name][0] for name in done if name.startswith("cost.")) == pytest.approx(done["cost"][0])


def test_fleet_scaling_is_the_cost_in_the_largest_fleet_divided_by_that_in_the_smallest() -> None:
    rounds = [a_round(nodes=4608, cost=0.12), a_round(nodes=64, cost=0.1)]
    found = {each.metric: each for each in bench.BENCH.results(rounds)}
    assert (found["fleet.scaling"].value, found["fleet.scaling"].baseline) == (1.2, 100)
    assert (found["fleet.active_p50_s"].value, found["fleet.active_p95_s"].value) == (10, 19)


def test_check_of_the_fleet_bench_accepts_a_requested_allocation_with_a_complete_timeline() -> None:
    assert [*checks.timeline_faults(checks.Timelines({"alc-1": (TIMELINE, "n1/0")}), ["alc-1"])] == []


@pytest.mark.parametrize(
    ("timelines", "fault"),
    [
        ({}, "allocation alc-1 is not in the ledger"),
        (
            {"alc-1": (TIMELINE, "n1/0"), "alc-2": (TIMELINE, "n1/1")},
            "allocation alc-2 is in the ledger, but was not requested",
        ),
        (
            {"alc-1": (TIMELINE[:-1], "n1/0")},
            "allocation alc-1 on n1/0: lost or duplicated events allocation.released",
        ),
        (
            {"alc-1": ([*TIMELINE, "allocation.activated"], "n1/0")},
            "allocation alc-1 on n1/0: lost or duplicated events allocation.activated",
        ),
        (
            {"alc-1": (TIMELINE[::-1], "n1/0")},
            f"allocation alc-1 on n1/0: events out of order: {', '.join(TIMELINE[::-1])}",
        ),
    ],
)
def test_fleet_check_names_an_event_that_the_ledger_lost_duplicated_or_reordered(
    timelines: dict[str, tuple[list[str], str]], fault: str
) -> None:
    [found] = checks.timeline_faults(checks.Timelines(timelines), ["alc-1"])
    assert found == fault


def test_check_of_the_fleet_bench_accepts_a_host_on_which_each_change_was_made_once_for_each_slice() -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"machine.start a": 2}, "node n1: host change machine.start a was made 2 times instead of once"),
        ({"machine.start d": 1}, "node n1: host change machine.start was made on 4 machines instead of 3"),
        ({"machine.destroy c": 0}, "node n1: host change machine.destroy c was made 0 times instead of once"),
        ({"port.add slice0": 3}, "node n1: host change port.add slice0 was made 3 times, expected 2"),
        ({"link.delete slice1": 0}, "node n1: host change link.delete slice1 was made 0 times, expected 1"),
    ],
)
def test_check_of_the_fleet_bench_reports_a_change_of_a_host_that_was_made_twice_or_never(
    change: dict[str, int], fault: str
) -> None:
    assert faults({**DONE, **change}) == [fault]


def test_fleet_check_names_objects_and_reports_that_are_left_on_a_node() -> None:
    node = NodeState("n1", DONE, ["taps slice0"], spooled=3)
    assert [*checks.host_faults(CARRIED, node)] == [
        "node n1: the host still has taps slice0",
        "node n1: 3 reports were not delivered",
    ]


def test_fleet_check_groups_slot_counts_by_node() -> None:
    assert checks.by_node(Counter({"n1/0": 2, "n1/1": 1, "n2/0": 1})) == {"n1": CARRIED, "n2": {"n2/0": 1}}


def faults(effects: dict[str, int] = DONE) -> list[str]:
    return [*checks.host_faults(CARRIED, NodeState("n1", effects, [], spooled=0))]


def a_round(nodes: int, cost: float) -> Round:
    seconds = [float(number) for number in range(1, 21)]
    return {
        "nodes": [float(nodes)],
        "completed": [8.0 * nodes],
        "active": seconds,
        "released": seconds,
        "creating": [10.0],
        "cost": [cost],
        "memory.api": [2.0**20],
    }
