"""P2 and P3 on real lab nodes: any program killed, or stopped for longer than its leases, while orders are in flight.

A case is a program, what is under way, and what is done to it. Within 30 seconds of the kill, or of the moment when the
stopped program goes on, everything has converged; within 30 seconds of its end an allocation has left nothing on the
hosts and in their queues. A machine is started once, as libvirt's own log says, and again only after it died. A case
without load fails.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import pytest

from tests import matrix
from tests.faults.embedded import start, stop
from tests.faults.programs import PROGRAMS, REPLICAS, Lab
from tests.lab.machine_log import Lives
from tests.servers.postgres import server_folder
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]

Phase = Literal["idle", "provisioning", "releasing"]
PHASES: Final[tuple[Phase, ...]] = ("idle", "provisioning", "releasing")
CONVERGED_SECONDS: Final = 30.0
STOPPED_SECONDS: Final = {"agent": 18.0, "redis": 5.0}
"""Longer than the leases: a worker's in the queue is 15 s, the wait for Redis 3 s, ..."""
OTHERS_STOPPED_SECONDS: Final = 7.0
"""... a leader's session 5 s, a transaction 4 s; an agent gives its host's programs less."""


@dataclass(frozen=True)
class Case:
    program: str
    phase: Phase

    def __str__(self) -> str:
        return f"{self.program}-{self.phase}"


EVERY: Final = [Case(program, phase) for program in PROGRAMS for phase in PHASES]
QUICK: Final = [
    case
    for case in EVERY
    if case.program != "agent" and case.phase != "provisioning" and case != Case("qemu", "idle")
]
"""In the others a guest boots after the fault, which takes long on a busy machine, or an agent's long lease
runs out.
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with server_folder() as state:
        running = start(state, replicas=REPLICAS)
        try:
            yield Lab(running.layout, running.stack, running.api.key, nodes=running.nodes)
        finally:
            stop(running)


def bring_up(lab: Lab, allocation: str, phase: Phase) -> None:
    if phase == "provisioning":
        until(lambda: lab.emulators() == 1, "its machine is being started")
    else:
        until(lambda: lab.is_active(allocation), f"{allocation} is active", 60)


@contextmanager
def under_way(lab: Lab, allocation: str, case: Case) -> Iterator[None]:
    """Where the fault is to find the allocation, which is brought up.

    A removal ends its machine in milliseconds: where QEMU is to be found alive, libvirtd is held up meanwhile.
    """
    held_up = case == Case("qemu", "releasing")
    if held_up:
        lab.signal("libvirtd", signal.SIGSTOP)
    try:
        if case.phase == "releasing":
            lab.release(allocation)
            until(lambda: lab.tasks_under_way() > 0, "its removal is under way")
        yield
    finally:
        if held_up:
            lab.signal("libvirtd", signal.SIGCONT)


def load_of(lab: Lab, phase: Phase) -> str:
    """What there is to lose at this moment."""
    if phase == "idle":
        machines = lab.machines()
        assert machines, "no load: no machine runs"
        return f"machines {machines}"
    orders = lab.tasks_under_way()
    assert orders, "no load: no order is under way"
    return f"{orders} orders under way"


def go_on(lab: Lab, program: str) -> None:
    """Let a stopped program go on, once it was stopped past its leases."""
    end = time.monotonic() + STOPPED_SECONDS.get(program, OTHERS_STOPPED_SECONDS)
    try:
        until(lambda: time.monotonic() > end, "it was stopped past its leases", 60)
    finally:
        lab.signal(program, signal.SIGCONT)


def converged(lab: Lab, allocation: str, phase: Phase) -> bool:
    if phase == "releasing":
        return lab.state(allocation) == "released"
    # Being told so is not enough: a machine that was killed is only found to be dead a moment later.
    found = (lab.machines(), lab.ports(), lab.emulators())
    return lab.is_active(allocation) and found == (["slice0"], ["slice0"], 1)


def check_none_was_started_twice(told: Lives, *, killed: bool) -> None:
    """Once; again after it was `killed`, or after libvirtd ended what it had died in the middle of starting."""
    assert told.starts == 1 + killed + told.ends("daemon"), told
    assert ("started", "started") not in pairwise(told.told), told


def hold(lab: Lab, case: Case, number: signal.Signals) -> None:
    until(lab.is_fit, "the node is fit to carry a slice again", 60)
    guest_dies = case.program == "qemu" and case.phase != "releasing" and number == signal.SIGKILL
    leaks, before, allocation = lab.leak_check(), lab.lives(), lab.create()
    try:
        bring_up(lab, allocation, case.phase)
        with under_way(lab, allocation, case):
            load = load_of(lab, case.phase)
            lab.signal(case.program, number)
        if number == signal.SIGSTOP:
            go_on(lab, case.program)
        began = time.monotonic()
        if guest_dies:
            until(
                lambda: lab.lives().since(before).starts == 2, "its death is noticed, and it is started again"
            )
        left = began + CONVERGED_SECONDS - time.monotonic()
        until(lambda: converged(lab, allocation, case.phase), f"all is well after {case}", left)
        print(f"{case} {number.name}: {load}; converged in {time.monotonic() - began:.1f} s")
        assert "allocation.failed" not in lab.story(allocation)
    finally:
        lab.give_back(allocation)
    ended = began if case.phase == "releasing" else time.monotonic()
    leaks.await_none(ended + CONVERGED_SECONDS - time.monotonic())
    check_none_was_started_twice(lab.lives().since(before), killed=guest_dies)
    assert lab.verified() == []


@matrix.cases("P2", EVERY, few=0, among=QUICK)
def test_a_program_killed(lab: Lab, case: Case) -> None:
    hold(lab, case, signal.SIGKILL)


@matrix.cases("P3", EVERY, few=0, among=QUICK)
def test_a_program_stopped_past_its_leases_has_no_stale_effect(lab: Lab, case: Case) -> None:
    hold(lab, case, signal.SIGSTOP)
