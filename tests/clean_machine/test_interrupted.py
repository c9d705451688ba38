"""A `./dev` set-up that is interrupted or killed while apt runs leaves no process; the next run completes it."""

from collections.abc import Callable

import pytest

from tests.clean_machine.machine import CleanMachine

pytestmark = [pytest.mark.clean_machine, pytest.mark.node, pytest.mark.timeout(900)]

SET_UP = ("./dev", "test", "--version")


def ended_by(signal: str, seconds: int) -> tuple[str, ...]:
    return ("timeout", "--signal", signal, str(seconds), *SET_UP)


def test_set_up_interrupted_or_killed_inside_apt_is_completed_by_the_next_run(
    new_machine: Callable[[str], CleanMachine],
) -> None:
    machine = new_machine("root")
    policy, mark = (
        machine.root / path for path in ("usr/sbin/policy-rc.d", "root/sliceplane/.venvs/apt-began")
    )

    interrupted = machine.run(*ended_by("INT", 14))
    assert "Interrupted" in interrupted.output
    assert interrupted.left_running == []
    assert not policy.exists()

    machine.run(*ended_by("KILL", 8))
    assert mark.exists()

    finished = machine.run(*SET_UP)
    assert finished.code == 0, finished.output
    assert finished.left_running == []
    assert not policy.exists()
    assert not mark.exists()
