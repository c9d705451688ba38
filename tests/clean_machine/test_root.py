"""`./dev` of root on a Debian with bash, git and Python 3.11 installs Debian packages and starts real nodes."""

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


def test_first_run_of_dev_up_with_option_once_succeeds_within_the_time_limit(first: Ended) -> None:
    print(first.output)
    assert first.code == 0, first.output
    assert first.seconds <= COLD_SECONDS


def test_set_up_as_root_installs_debian_packages_and_no_kernel(first: Ended, machine: CleanMachine) -> None:
    assert "ok  installing Debian packages" in first.output
    assert machine.kernels() == []


def test_set_up_starts_no_service_and_leaves_no_process_running(first: Ended) -> None:
    assert first.left_running == []


def test_servers_that_the_set_up_installs_are_not_enabled_at_boot(
    first: Ended, machine: CleanMachine
) -> None:
    enabled = (machine.root / "etc/systemd/system/multi-user.target.wants").glob("*")
    servers = ("redis", "postgresql", "openvswitch", "libvirt", "virtlo")
    assert [unit.name for unit in enabled if unit.name.startswith(servers)] == []


def test_policy_that_denies_service_starts_is_removed_after_the_set_up(
    first: Ended, machine: CleanMachine
) -> None:
    assert not (machine.root / "usr/sbin/policy-rc.d").exists()


def test_second_run_of_dev_up_with_option_once_installs_nothing_and_succeeds_within_a_minute(
    first: Ended, machine: CleanMachine
) -> None:
    again = machine.run("./dev", "up", "--once")
    assert again.code == 0, again.output
    assert "installing" not in again.output
    assert again.seconds <= WARM_SECONDS
