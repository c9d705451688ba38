"""Command line and measurements of the benchmarks, which access the ledger only through the product's functions."""

import ast
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, lines, main, table
from bench.harness.measure import (
    Bench,
    Measurement,
    Pair,
    Progress,
    Round,
    TakeRound,
    percentile,
    pooled_median,
    ratio,
)
from bench.harness.rounds import KeptRounds, take_rounds
from tests.checks.files import place, python_files

LEDGER_SQL = re.compile(
    r"(?<!bench\.)\bledger\s*\.\s*\w|\b(take_key|hold_key|note_dead|position_seq)\b", re.IGNORECASE
)


class _Interrupted(Exception):
    """Exception that interrupts a benchmark run before its last round."""


def counting(*, rounds: int, until: int | None = None, shape: str = "counting") -> Bench:
    """Return a benchmark that measures the number k in round k and is interrupted before round `until`."""

    @asynccontextmanager
    async def running() -> AsyncIterator[TakeRound]:
        async def take(number: int, progress: Progress) -> Round:
            if number == until:
                raise _Interrupted
            progress(0.5)
            return {"number": [float(number)]}

        yield take

    return Bench(
        "counting",
        "counts",
        shape,
        rounds,
        running,
        lambda taken: (pooled_median("m", taken, "number", "x"),),
    )


def discard(_text: str) -> None:
    """Discard the progress output of a benchmark."""


def numbers(rounds: list[Round]) -> list[float]:
    return [number for each in rounds for number in each["number"]]


def test_unknown_benchmark_name_is_refused_with_the_list_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    output = capsys.readouterr()
    assert "'dance'" in output.err
    assert all(name in output.err for name in BENCHES)
    assert output.out == ""


@pytest.mark.parametrize("arguments", [[], ["append", "--fast"], ["append", "dispatch"]])
def test_invalid_arguments_of_the_benchmark_program_are_refused_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: ./dev bench" in capsys.readouterr().err


def test_help_of_the_benchmark_program_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert all(name in output for name in BENCHES)


def test_json_line_of_a_benchmark_measurement_has_a_baseline_only_for_a_ratio() -> None:
    found = [Measurement("a.ratio_raw", 0.61, "ratio", 5000.0), Measurement("a.p50_ms", 4.2, "ms")]
    assert [json.loads(line) for line in lines(found).splitlines()] == [
        {"metric": "a.ratio_raw", "value": 0.61, "unit": "ratio", "baseline": 5000.0},
        {"metric": "a.p50_ms", "value": 4.2, "unit": "ms"},
    ]


def test_benchmark_table_shows_metric_value_unit_and_baseline_in_columns() -> None:
    shown = table([Measurement("a.ratio_raw", 0.61, "ratio", 5000.0), Measurement("a.p50_ms", 4.2, "ms")])
    assert [line.split() for line in shown.splitlines()] == [
        ["metric", "value", "unit", "baseline"],
        ["a.ratio_raw", "0.61", "ratio", "5,000"],
        ["a.p50_ms", "4.2", "ms"],
    ]


@pytest.mark.parametrize("name", BENCHES)
def test_every_metric_begins_with_the_name_of_its_benchmark(name: str) -> None:
    bench = BENCHES[name]
    found = bench.results([defaultdict(lambda: [1.0])])  # every series has one number
    assert found
    assert all(each.metric.startswith(f"{bench.name}.") for each in found)


def test_benchmark_ratio_is_the_median_of_the_ratios_within_each_round() -> None:
    rounds = [
        {"ours": [6.0], "raw": [10.0]},
        {"ours": [60.0], "raw": [100.0]},
        {"ours": [1.0], "raw": [10.0]},
    ]
    assert ratio("m", rounds, Pair("ours", "raw")) == Measurement("m", 0.6, "ratio", 10.0)


def test_benchmark_percentile_is_one_of_the_measured_numbers() -> None:
    rounds = [{"idle": [float(number) for number in range(1, 101)]}]
    assert percentile("m", rounds, "idle", "ms", 50).value == 50
    assert percentile("m", rounds, "idle", "ms", 99).value == 99
    assert percentile("m", [{"idle": [7.0]}], "idle", "ms", 99).value == 7


async def test_benchmark_progress_shows_the_number_of_each_round_and_of_all_rounds(tmp_path: Path) -> None:
    lines_shown: list[str] = []
    kept = KeptRounds(tmp_path / "kept", "counting")
    await take_rounds(counting(rounds=3), kept, resume=False, show=lines_shown.append)
    output = "".join(lines_shown)
    assert [f"round {number} of 3" in output for number in (1, 2, 3)] == [True, True, True]


async def test_resumed_benchmark_continues_after_its_last_finished_round(tmp_path: Path) -> None:
    kept = KeptRounds(tmp_path / "kept", "counting")
    with pytest.raises(_Interrupted):
        await take_rounds(counting(rounds=5, until=2), kept, resume=False, show=discard)
    assert numbers(kept.load()) == [0, 1]
    with pytest.raises(_Interrupted):  # rounds 0 and 1 are not taken again
        await take_rounds(counting(rounds=5, until=4), kept, resume=True, show=discard)
    done = await take_rounds(counting(rounds=5), kept, resume=True, show=discard)
    assert numbers(done) == [0, 1, 2, 3, 4]
    assert kept.load() == []


async def test_benchmark_without_resume_discards_the_stored_rounds_of_an_earlier_run(tmp_path: Path) -> None:
    kept = KeptRounds(tmp_path / "kept", "counting")
    kept.begin([{"number": [77.0]}])
    assert numbers(await take_rounds(counting(rounds=2), kept, resume=False, show=discard)) == [0, 1]


def test_incomplete_last_line_in_the_file_of_finished_benchmark_rounds_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    kept = KeptRounds(path, "counting")
    kept.begin([{"number": [0.0]}, {"number": [1.0]}])
    path.write_bytes(path.read_bytes()[:-7])
    assert numbers(kept.load()) == [0]


def test_stored_rounds_of_a_benchmark_with_different_parameters_are_not_loaded(tmp_path: Path) -> None:
    KeptRounds(tmp_path / "kept", "smaller").begin([{"number": [0.0]}])
    assert KeptRounds(tmp_path / "kept", "counting").load() == []


def test_benchmarks_contain_no_sql_on_the_tables_of_the_ledger() -> None:
    found = [
        f"{place(path, node.lineno)}: {node.value}"
        for path in python_files(below="bench")
        for node in ast.walk(_without_docstrings(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and LEDGER_SQL.search(node.value)
    ]
    assert found == []


def test_only_the_baseline_of_the_append_benchmark_imports_the_table_definitions_of_the_ledger() -> None:
    """SQL built from the table definitions would bypass the ledger's functions, as SQL in a string would."""
    importing = {
        path.name
        for path in python_files(below="bench")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in {"events.ledger.tables", "events.ledger.store"}
    }
    assert importing == {"raw.py"}


def _without_docstrings(path: Path) -> ast.AST:
    """Return the source code of a module without its docstrings, which may name tables."""
    tree = ast.parse(path.read_text(), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                each
                for each in node.body
                if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return tree
