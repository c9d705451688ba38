"""`./dev` on a machine that is set up."""

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.checks.files import ROOT
from tests.interrupting import interrupted
from tests.torture import PROMISES


def dev(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "dev", *arguments], cwd="/", check=False, capture_output=True, text=True, timeout=60
    )


def test_help_lists_the_verbs() -> None:
    listed = dev("help").stdout
    assert re.findall(r"\./dev (\w+)", listed) == [
        "up",
        "down",
        "reset",
        "test",
        "torture",
        "check",
        "bench",
        "events",
        "tasks",
        "drift",
        "lock",
    ]


def test_an_unknown_verb_is_refused_with_the_list_of_verbs() -> None:
    ended = dev("dance")
    assert ended.returncode == 2
    assert "./dev up" in ended.stderr


def test_torture_refuses_an_unknown_promise_with_the_list_of_those_it_knows() -> None:
    ended = dev("torture", "--only", "P11", "P99")
    assert ended.returncode == 2
    assert "P99" in ended.stderr
    assert all(f"'{promise}'" in ended.stderr for promise in PROMISES)


@pytest.mark.parametrize("module", ["sitecustomize", "tomllib"])
def test_an_interrupt_before_the_set_up_ends_it_with_one_line(tmp_path: Path, module: str) -> None:
    ended = interrupted(tmp_path, module, ROOT / "dev", "test", "--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "\nInterrupted.\n")


@pytest.mark.skipif(not (ROOT / ".venv/complete").exists(), reason="this environment was not made by ./dev")
def test_being_set_up_already_costs_next_to_nothing() -> None:
    began = time.monotonic()
    ended = dev("test", "--version")
    assert ended.returncode == 0
    assert "installing" not in ended.stderr
    assert time.monotonic() - began < 3  # pytest's own start is most of it
