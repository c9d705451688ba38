"""The fleet bench: a tiny fleet for real, and that it names what is lost and what is doubled."""

from collections import Counter
from pathlib import Path

import pytest

from bench import fleet as bench
from bench import fleet_checks as checks
from bench.fleet import Size, fleet
from bench.fleet_nodes import Holding
from bench.measure import Round
from bench.rounds import KeptRounds, take_rounds
from tests.bench.test_bench import silent

LIFE = [*checks.STORY]
CARRIED = {"n1/0": 2, "n1/1": 1}
MACHINES = ("a", "b", "c")
DONE = {
    **{f"{effect} slice0": 2 for effect in checks.ONCE_IN_A_LIFE},
    **{f"{effect} slice1": 1 for effect in checks.ONCE_IN_A_LIFE},
    **{f"{effect} {machine}": 1 for effect in ("machine.start", "machine.destroy") for machine in MACHINES},
}


async def test_a_fleet_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "IDLE_SECONDS", 0.2)
    [done] = await take_rounds(
        fleet([Size(nodes=3, cycles=2)], slots=2),
        KeptRounds(tmp_path / "kept", "tiny"),
        resume=False,
        say=silent,
    )
    assert (done["completed"], len(done["active"]), len(done["released"])) == ([12.0], 12, 12)
    assert {name for name in done if name.startswith("cost.")} == {
        f"cost.{name}" for name in ("api", "dispatcher", "projector", "postgres", "redis", "agents")
    }
    assert sum(done[name][0] for name in done if name.startswith("cost.")) == pytest.approx(done["cost"][0])


def test_scaling_is_the_cost_in_the_largest_fleet_over_that_in_the_smallest() -> None:
    rounds = [a_round(nodes=4608, cost=0.12), a_round(nodes=64, cost=0.1)]
    found = {each.metric: each for each in bench.BENCH.results(rounds)}
    assert (found["fleet.scaling"].value, found["fleet.scaling"].baseline) == (1.2, 100)
    assert (found["fleet.active_p50_s"].value, found["fleet.active_p95_s"].value) == (10, 19)


def test_a_whole_story_of_what_was_asked_for_has_no_fault() -> None:
    assert [*checks.told_faults(checks.Stories({"alc-1": (LIFE, "n1/0")}), ["alc-1"])] == []


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({}, "alc-1 is not in the ledger"),
        (
            {"alc-1": (LIFE, "n1/0"), "alc-2": (LIFE, "n1/1")},
            "alc-2 is in the ledger, and nobody asked for it",
        ),
        ({"alc-1": (LIFE[:-1], "n1/0")}, "alc-1 on n1/0: lost or doubled allocation.released"),
        (
            {"alc-1": ([*LIFE, "allocation.activated"], "n1/0")},
            "alc-1 on n1/0: lost or doubled allocation.activated",
        ),
        ({"alc-1": (LIFE[::-1], "n1/0")}, f"alc-1 on n1/0: out of order {', '.join(LIFE[::-1])}"),
    ],
)
def test_what_the_ledger_lost_or_doubled_is_named(told: dict[str, tuple[list[str], str]], fault: str) -> None:
    [found] = checks.told_faults(checks.Stories(told), ["alc-1"])
    assert found == fault


def test_a_host_that_did_everything_once_has_no_fault() -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"machine.start a": 2}, "n1: machine.start a 2 times"),
        ({"machine.start d": 1}, "n1: machine.start of 4 machines for 3 slices"),
        ({"machine.destroy c": 0}, "n1: machine.destroy c 0 times"),
        ({"port.add slice0": 3}, "n1: port.add slice0 3 times for 2 slices"),
        ({"link.delete slice1": 0}, "n1: link.delete slice1 0 times for 1 slices"),
    ],
)
def test_what_a_host_did_twice_or_never_is_named(change: dict[str, int], fault: str) -> None:
    assert faults({**DONE, **change}) == [fault]


def test_what_is_left_on_a_node_is_named() -> None:
    holding = Holding("n1", DONE, ["taps slice0"], spooled=3)
    assert [*checks.host_faults(CARRIED, holding)] == [
        "n1: left taps slice0",
        "n1: 3 reports that nobody took",
    ]


def test_slots_are_counted_by_node() -> None:
    assert checks.by_node(Counter({"n1/0": 2, "n1/1": 1, "n2/0": 1})) == {"n1": CARRIED, "n2": {"n2/0": 1}}


def faults(effects: dict[str, int] = DONE) -> list[str]:
    return [*checks.host_faults(CARRIED, Holding("n1", effects, [], spooled=0))]


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
