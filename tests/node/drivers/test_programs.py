"""Tests of programs that the agent starts in parallel: their outputs are returned together, and no program is left
running.
"""

import os
import threading
from pathlib import Path
from typing import Final

import pytest

from node_agent.drivers.programs import PendingQuery, run_change, start_query
from node_agent.host.slices import HostRefused, HostUnreadable

TIMEOUT: Final = 10.0


def joined(*outputs: str) -> str:
    return "".join(outputs)


def shell(*scripts: str, deadline: float = TIMEOUT) -> PendingQuery[str]:
    return start_query("the shell", [("sh", "-c", script) for script in scripts], joined, deadline)


def have_ended(query: PendingQuery[str]) -> bool:
    return all(program.returncode is not None for program in query.programs)


def children() -> str:
    """Return the processes that this thread has started and not yet waited for."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()


def test_outputs_of_programs_started_in_parallel_are_returned_in_the_order_of_the_commands(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # The first ends only when the second has started.
    assert (
        shell(f"cat {pipe}", f"echo from the second > {pipe}; echo second").answer()
        == "from the second\nsecond\n"
    )


def test_failure_of_one_of_several_programs_quotes_its_error_output_and_ends_the_other_programs() -> None:
    query = shell("echo no such bridge >&2; exit 1", "exec sleep 600")
    with pytest.raises(HostUnreadable, match="the shell: no such bridge"):
        query.answer()
    assert have_ended(query)


def test_hanging_program_that_the_agent_started_is_ended_at_the_deadline() -> None:
    query = shell("exec sleep 600", deadline=0.05)
    with pytest.raises(HostUnreadable, match="timed out"):
        query.answer()
    assert have_ended(query)


def test_missing_program_among_several_makes_the_host_unreadable_and_leaves_no_other_program_running() -> (
    None
):
    before = children()
    with pytest.raises(HostUnreadable, match=r"a program: .*nowhere"):
        start_query("a program", [("sleep", "600"), ("/nowhere",)], joined, TIMEOUT)
    assert children() == before


def test_program_output_that_cannot_be_parsed_makes_the_host_unreadable() -> None:
    query = start_query("a number", [("echo", "none")], int, TIMEOUT)
    with pytest.raises(HostUnreadable, match="a number: invalid literal"):
        query.answer()


def test_cancelled_host_query_ends_all_programs_that_it_started() -> None:
    query = shell("exec sleep 600", "exec sleep 600")
    query.end()
    assert have_ended(query)


def test_failed_program_counts_as_a_host_refusal_unless_it_was_killed_timed_out_or_reported_no_answer() -> (
    None
):
    def change(script: str, deadline: float = TIMEOUT) -> None:
        run_change("the shell", ("sh", "-c", script), "", deadline, lambda words: words.endswith("(gone)"))

    with pytest.raises(HostRefused, match="the shell: no"):
        change("echo no >&2; exit 1")
    with pytest.raises(HostUnreadable, match=r"the shell: no answer \(gone\)"):
        change("echo 'no answer (gone)' >&2; exit 1")
    with pytest.raises(HostUnreadable, match="the shell: "):
        change("kill -9 $$")
    with pytest.raises(HostUnreadable, match="timed out"):
        change("read line < /dev/zero", deadline=0.1)
    change("true")
