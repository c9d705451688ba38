"""Promises P2 and P3 on real lab nodes: any program is killed, or stopped until others count it as dead, while orders
are in flight.

A case consists of a program, a phase of an allocation, and the signal that the program receives. `tests.faults.phases`
checks the result.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests import matrix
from tests.faults.phases import PHASES, Case, Fault, run_case
from tests.faults.programs import PROGRAMS, Lab
from tests.waiting import last

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]

STOPPED_SECONDS: Final = {"agent": 18.0, "redis": 5.0}
"""Seconds for which a program is stopped: longer than the worker timeout of the queue (15 s) for the agent, and than
the timeout of Redis clients (3 s) for Redis.
"""
OTHERS_STOPPED_SECONDS: Final = 7.0
"""Seconds for which any other program is stopped: longer than a leader's session (5 s) and a transaction (4 s) may
last. An agent's timeouts for the programs of its host are shorter.
"""


EVERY: Final = [Case(program, phase) for program in PROGRAMS for phase in PHASES]
QUICK: Final = [
    case
    for case in EVERY
    if case.of != "agent" and case.phase != "provisioning" and case != Case("qemu", "idle")
]
"""Cases that end soon. In the other cases a guest boots after the fault, which takes long on a busy machine, or the
test waits for the worker timeout of a stopped agent.
"""


@contextmanager
def around(lab: Lab, case: Case) -> Iterator[None]:
    """Context of a fault: if QEMU is to be killed during a release, stop libvirtd in this context. Otherwise the
    release would end QEMU within milliseconds, before the test can kill it.
    """
    held_up = case == Case("qemu", "releasing")
    if held_up:
        lab.signal("libvirtd", signal.SIGSTOP)
    try:
        yield
    finally:
        if held_up:
            lab.signal("libvirtd", signal.SIGCONT)


def go_on(lab: Lab, program: str) -> None:
    """Leave a program stopped until its sessions, heartbeats and transactions have timed out, then continue it."""
    try:
        last(STOPPED_SECONDS.get(program, OTHERS_STOPPED_SECONDS))
    finally:
        lab.signal(program, signal.SIGCONT)


@matrix.cases("P2", EVERY, few=1, among=QUICK)
def test_system_reaches_the_desired_state_within_30_seconds_after_a_program_is_killed(
    lab: Lab, case: Case
) -> None:
    fault = Fault(
        f"{case} killed",
        lambda: lab.signal(case.of, signal.SIGKILL),
        around=around(lab, case),
        guest_dies=case.of == "qemu" and case.phase in ("idle", "provisioning"),
    )
    run_case(lab, case.phase, fault)


@matrix.cases("P3", EVERY, few=1, among=QUICK)
def test_program_stopped_for_longer_than_all_timeouts_has_no_stale_effect_when_it_continues(
    lab: Lab, case: Case
) -> None:
    fault = Fault(
        f"{case} stopped",
        lambda: lab.signal(case.of, signal.SIGSTOP),
        lambda: go_on(lab, case.of),
        around=around(lab, case),
    )
    run_case(lab, case.phase, fault)
