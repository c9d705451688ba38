"""Programs that are begun side by side answer together, and none is left behind."""

import os
import threading
from pathlib import Path
from typing import Final

import pytest

from node_agent.drivers.programs import Asked, ask, tell
from node_agent.slices import HostRefused, HostUnreadable

PATIENCE: Final = 10.0


def joined(*outputs: str) -> str:
    return "".join(outputs)


def shell(*scripts: str, deadline: float = PATIENCE) -> Asked[str]:
    return ask("the shell", [("sh", "-c", script) for script in scripts], joined, deadline)


def gone(asked: Asked[str]) -> bool:
    return all(program.returncode is not None for program in asked.programs)


def children() -> str:
    """The processes that this thread has begun and not waited for."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


def test_their_outputs_are_read_in_the_order_of_the_commands(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # The first ends only when the second has begun.
    assert (
        shell(f"cat {pipe}", f"echo from the second > {pipe}; echo second").answer()
        == "from the second\nsecond\n"
    )


def test_one_that_fails_is_quoted_and_the_others_are_ended() -> None:
    asked = shell("echo no such bridge >&2; exit 1", "exec sleep 600")
    with pytest.raises(HostUnreadable, match="the shell: no such bridge"):
        asked.answer()
    assert gone(asked)


def test_one_that_hangs_is_waited_for_until_the_deadline_and_ended() -> None:
    asked = shell("exec sleep 600", deadline=0.05)
    with pytest.raises(HostUnreadable, match="timed out"):
        asked.answer()
    assert gone(asked)


def test_one_that_is_not_there_is_no_answer() -> None:
    before = children()
    with pytest.raises(HostUnreadable, match=r"a program: .*nowhere"):
        ask("a program", [("sleep", "600"), ("/nowhere",)], joined, PATIENCE)
    assert children() == before


def test_output_that_means_nothing_is_no_answer() -> None:
    asked = ask("a number", [("echo", "none")], int, PATIENCE)
    with pytest.raises(HostUnreadable, match="a number: invalid literal"):
        asked.answer()


def test_who_does_not_want_to_know_any_more_leaves_none_behind() -> None:
    asked = shell("exec sleep 600", "exec sleep 600")
    asked.end()
    assert gone(asked)


def test_a_program_that_says_no_is_a_refusal_and_one_that_says_nothing_is_none() -> None:
    def told(script: str, deadline: float = PATIENCE) -> None:
        tell("the shell", ("sh", "-c", script), "", deadline, lambda words: words.endswith("(gone)"))

    with pytest.raises(HostRefused, match="the shell: no"):
        told("echo no >&2; exit 1")
    with pytest.raises(HostUnreadable, match=r"the shell: nobody \(gone\)"):
        told("echo 'nobody (gone)' >&2; exit 1")
    with pytest.raises(HostUnreadable, match="the shell: "):
        told("kill -9 $$")
    with pytest.raises(HostUnreadable, match="timed out"):
        told("read line < /dev/zero", deadline=0.1)
    told("true")
