"""The benches as a person calls them, and the rule that they know no way into the ledger but the API's."""

import ast
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, lines, main, table
from bench.measure import Bench, Measurement, Pair, Progress, Round, TakeRound, middle, percentile, ratio
from bench.rounds import KeptRounds, take_rounds
from tests.checks.files import place, python_files

LEDGERS_OWN = re.compile(r"\bledger\s*\.\s*\w|\b(take_key|hold_key|note_dead|position_seq)\b", re.IGNORECASE)


class _Interrupted(Exception):
    """What ends a run in the middle."""


def counting(*, rounds: int, until: int | None = None, shape: str = "counting") -> Bench:
    """A bench whose round k says k, and that is interrupted before round `until`."""

    @asynccontextmanager
    async def running() -> AsyncIterator[TakeRound]:
        async def take(number: int, progress: Progress) -> Round:
            if number == until:
                raise _Interrupted
            progress(0.5)
            return {"number": [float(number)]}

        yield take

    return Bench(
        "counting", "counts", shape, rounds, running, lambda taken: (middle("m", taken, "number", "x"),)
    )


def silent(_text: str) -> None:
    """For a run that nobody watches."""


def numbers(rounds: list[Round]) -> list[float]:
    return [number for each in rounds for number in each["number"]]


def test_an_unknown_name_is_refused_with_the_list_of_benches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    said = capsys.readouterr()
    assert "'dance'" in said.err
    assert all(name in said.err for name in BENCHES)
    assert said.out == ""


@pytest.mark.parametrize("arguments", [[], ["append", "--fast"], ["append", "dispatch"]])
def test_arguments_that_make_no_sense_are_refused_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: ./dev bench" in capsys.readouterr().err


def test_the_help_names_every_bench(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in BENCHES)


def test_a_line_is_an_object_with_a_baseline_for_ratios_alone() -> None:
    found = [Measurement("a.ratio_raw", 0.61, "ratio", 5000.0), Measurement("a.p50_ms", 4.2, "ms")]
    assert [json.loads(line) for line in lines(found).splitlines()] == [
        {"metric": "a.ratio_raw", "value": 0.61, "unit": "ratio", "baseline": 5000.0},
        {"metric": "a.p50_ms", "value": 4.2, "unit": "ms"},
    ]


def test_the_table_shows_the_same_for_people() -> None:
    shown = table([Measurement("a.ratio_raw", 0.61, "ratio", 5000.0), Measurement("a.p50_ms", 4.2, "ms")])
    assert [line.split() for line in shown.splitlines()] == [
        ["metric", "value", "unit", "baseline"],
        ["a.ratio_raw", "0.61", "ratio", "5,000"],
        ["a.p50_ms", "4.2", "ms"],
    ]


@pytest.mark.parametrize("name", BENCHES)
def test_every_metric_begins_with_the_name_of_its_bench(name: str) -> None:
    bench = BENCHES[name]
    found = bench.results([defaultdict(lambda: [1.0])])  # whatever series it asks for
    assert found
    assert all(each.metric.startswith(f"{bench.name}.") for each in found)


def test_a_ratio_is_taken_within_each_round_and_then_the_median() -> None:
    rounds = [
        {"ours": [6.0], "raw": [10.0]},
        {"ours": [60.0], "raw": [100.0]},
        {"ours": [1.0], "raw": [10.0]},
    ]
    assert ratio("m", rounds, Pair("ours", "raw")) == Measurement("m", 0.6, "ratio", 10.0)


def test_a_percentile_is_a_number_that_was_measured() -> None:
    rounds = [{"idle": [float(number) for number in range(1, 101)]}]
    assert percentile("m", rounds, "idle", "ms", 50).value == 50
    assert percentile("m", rounds, "idle", "ms", 99).value == 99
    assert percentile("m", [{"idle": [7.0]}], "idle", "ms", 99).value == 7


async def test_progress_tells_each_round_of_how_many(tmp_path: Path) -> None:
    said: list[str] = []
    kept = KeptRounds(tmp_path / "kept", "counting")
    await take_rounds(counting(rounds=3), kept, resume=False, say=said.append)
    told = "".join(said)
    assert [f"round {number} of 3" in told for number in (1, 2, 3)] == [True, True, True]


async def test_an_interrupted_run_goes_on_behind_its_last_finished_round(tmp_path: Path) -> None:
    kept = KeptRounds(tmp_path / "kept", "counting")
    with pytest.raises(_Interrupted):
        await take_rounds(counting(rounds=5, until=2), kept, resume=False, say=silent)
    assert numbers(kept.load()) == [0, 1]
    with pytest.raises(_Interrupted):  # the servers are asked for round 2 on, and no round is taken again
        await take_rounds(counting(rounds=5, until=4), kept, resume=True, say=silent)
    done = await take_rounds(counting(rounds=5), kept, resume=True, say=silent)
    assert numbers(done) == [0, 1, 2, 3, 4]
    assert kept.load() == []


async def test_a_run_that_does_not_resume_begins_anew(tmp_path: Path) -> None:
    kept = KeptRounds(tmp_path / "kept", "counting")
    kept.begin([{"number": [77.0]}])
    assert numbers(await take_rounds(counting(rounds=2), kept, resume=False, say=silent)) == [0, 1]


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept = KeptRounds(path, "counting")
    kept.begin([{"number": [0.0]}, {"number": [1.0]}])
    path.write_bytes(path.read_bytes()[:-7])
    assert numbers(kept.load()) == [0]


def test_rounds_of_another_shape_are_not_gone_on_with(tmp_path: Path) -> None:
    KeptRounds(tmp_path / "kept", "smaller").begin([{"number": [0.0]}])
    assert KeptRounds(tmp_path / "kept", "counting").load() == []


def test_no_bench_has_sql_of_the_ledgers_own() -> None:
    found = [
        f"{place(path, node.lineno)}: {node.value}"
        for path in python_files(below="bench")
        for node in ast.walk(_without_docstrings(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and LEDGERS_OWN.search(node.value)
    ]
    assert found == []


def test_only_the_baseline_knows_the_ledgers_tables() -> None:
    """A statement built from its tables would be SQL of the ledger's own as well."""
    importing = {
        path.name
        for path in python_files(below="bench")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in {"events.tables", "events.store"}
    }
    assert importing == {"raw.py"}


def _without_docstrings(path: Path) -> ast.AST:
    """A module's code; prose may name what code may not."""
    tree = ast.parse(path.read_text(), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                each
                for each in node.body
                if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return tree
