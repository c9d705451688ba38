"""root on a Debian with bash, git and Python 3.11: packages of Debian's, real nodes."""

from collections.abc import Callable

import pytest

from tests.clean_machine.machine import CleanMachine, Ended

pytestmark = [pytest.mark.clean_machine, pytest.mark.node, pytest.mark.timeout(1200)]

COLD_SECONDS = 360
WARM_SECONDS = 60


@pytest.fixture(scope="module")
def machine(new_machine: Callable[[str], CleanMachine]) -> CleanMachine:
    return new_machine("root")


@pytest.fixture(scope="module")
def first(machine: CleanMachine) -> Ended:
    return machine.run("./dev", "up", "--once", limit_seconds=900)


def test_the_first_up_once_ends_well_in_time(first: Ended) -> None:
    print(first.output)
    assert first.code == 0, first.output
    assert first.seconds <= COLD_SECONDS


def test_the_set_up_installed_debians_packages_and_no_kernel(first: Ended, machine: CleanMachine) -> None:
    assert "ok  installing Debian packages" in first.output
    assert machine.kernels() == []


def test_no_service_was_started_and_nothing_is_left_running(first: Ended) -> None:
    assert first.left_running == []


def test_no_service_that_came_along_starts_at_boot(first: Ended, machine: CleanMachine) -> None:
    wanted = (machine.root / "etc/systemd/system/multi-user.target.wants").glob("*")
    servers = ("redis", "postgresql", "openvswitch", "libvirt", "virtlo")
    assert [unit.name for unit in wanted if unit.name.startswith(servers)] == []


def test_the_policy_that_denied_services_is_gone(first: Ended, machine: CleanMachine) -> None:
    assert not (machine.root / "usr/sbin/policy-rc.d").exists()


def test_a_second_up_once_is_quick(first: Ended, machine: CleanMachine) -> None:
    again = machine.run("./dev", "up", "--once")
    assert again.code == 0, again.output
    assert "installing" not in again.output
    assert again.seconds <= WARM_SECONDS
