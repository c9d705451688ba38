"""Tests of the command `./dev` on a machine that is already set up."""

import re
import subprocess
import time
from pathlib import Path

import pytest

from deploy.setup.verbs import command
from tests.checks.files import ROOT
from tests.interrupting import interrupted
from tests.torture import PROMISES


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "dev", *arguments], cwd="/", check=False, capture_output=True, text=True, timeout=60
    )


def test_dev_help_lists_all_verbs_in_a_fixed_order() -> None:
    listed = dev("help").stdout
    assert re.findall(r"\./dev (\w+)", listed) == [
        "up",
        "down",
        "reset",
        "screenshots",
        "test",
        "torture",
        "check",
        "bench",
        "events",
        "tasks",
        "drift",
        "names",
        "openapi",
        "lock",
    ]


def test_unknown_dev_verb_is_refused_with_the_list_of_verbs() -> None:
    completed = dev("dance")
    assert completed.returncode == 2
    assert "./dev up" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "is_whole", "is_sample"),
    [
        ([], True, True),
        (["--random-order", "7"], True, True),
        (["--all"], True, False),
        (["--all", "--random-order"], True, False),
        (["queue"], False, False),
        (["--all", "queue"], False, False),
        (["--affected"], False, False),
    ],
)
def test_dev_test_runs_a_share_of_the_slow_tests_unless_all_or_named_tests_are_requested(
    arguments: list[str], is_whole: bool, is_sample: bool
) -> None:
    built = command("test", arguments)
    assert ("--dist" in built) == is_whole
    assert ("--slow-share" in built) == is_sample
    assert "--all" not in built


def test_dev_torture_refuses_an_unknown_promise_with_the_list_of_known_promises() -> None:
    completed = dev("torture", "--only", "P11", "P99")
    assert completed.returncode == 2
    assert "P99" in completed.stderr
    assert all(f"'{promise}'" in completed.stderr for promise in PROMISES)


@pytest.mark.parametrize("promise", PROMISES)
def test_every_test_that_dev_torture_runs_for_a_promise_exists(promise: str) -> None:
    for test in PROMISES[promise]:
        path, _, function = test.partition("::")
        assert (ROOT / path).exists(), test
        assert not function or f"def {function}(" in (ROOT / path).read_text(), test


@pytest.mark.parametrize("module", ["sitecustomize", "tomllib"])
def test_dev_prints_one_line_when_it_is_interrupted_before_the_set_up(tmp_path: Path, module: str) -> None:
    completed = interrupted(tmp_path, module, ROOT / "dev", "test", "--version")
    assert (completed.returncode, completed.stdout, completed.stderr) == (130, "", "\nInterrupted.\n")


@pytest.mark.skipif(not (ROOT / ".venv/complete").exists(), reason="./dev did not create this environment")
def test_dev_on_a_machine_that_is_set_up_starts_the_verb_within_three_seconds() -> None:
    began = time.monotonic()
    completed = dev("test", "--version")
    assert completed.returncode == 0
    assert "installing" not in completed.stderr
    assert time.monotonic() - began < 3  # most of it is the start of pytest
