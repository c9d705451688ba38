"""`./dev` of an ordinary user on a Debian with bash, git and Python 3.11 uses packages of PyPI and simulated nodes."""

from collections.abc import Callable

import pytest

from tests.clean_machine.machine import PERSON, CleanMachine, Ended

pytestmark = [pytest.mark.clean_machine, pytest.mark.node, pytest.mark.timeout(900)]

COLD_SECONDS = 120


@pytest.fixture(scope="module")
def machine(new_machine: Callable[[str], CleanMachine]) -> CleanMachine:
    return new_machine(PERSON)


@pytest.fixture(scope="module")
def first(machine: CleanMachine) -> Ended:
    return machine.run("./dev", "up", "--once")


def test_first_run_of_dev_up_with_option_once_succeeds_within_the_time_limit(first: Ended) -> None:
    print(first.output)
    assert first.code == 0, first.output
    assert first.seconds <= COLD_SECONDS


def test_set_up_as_an_ordinary_user_installs_python_packages_and_no_debian_packages(first: Ended) -> None:
    assert "Debian packages" not in first.output
    assert "installing Python packages" in first.output


def test_first_run_of_dev_up_with_option_once_leaves_no_process_running(first: Ended) -> None:
    assert first.left_running == []


def test_second_dev_up_installs_nothing_and_starts_within_five_seconds(
    first: Ended, machine: CleanMachine
) -> None:
    again = machine.run("./dev", "help")
    assert again.code == 0
    again = machine.run("./dev", "test", "--version")
    assert again.code == 0, again.output
    assert "installing" not in again.output
    assert again.seconds < 5
