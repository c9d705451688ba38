"""Common sequence of every fault test on real lab nodes: an allocation reaches a phase, the fault is injected, and the
result is checked.

The system converges within 30 seconds of the fault's end. Within 30 seconds of the allocation's end, the hosts and
their queues contain nothing of this allocation. libvirt's log shows that the virtual machine was started once, and
again only after it had ended. A case fails if no machine runs (phase `idle`) or no order is in flight (other phases)
when the fault is injected, because it would prove nothing.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, get_args

from tests.faults.programs import Lab
from tests.lab.machine_log import Lives
from tests.waiting import until

Phase = Literal["idle", "provisioning", "stopping", "releasing"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
CONVERGED_SECONDS: Final = 30.0
_ASKED: Final[dict[Phase, Callable[[Lab, str], None]]] = {"stopping": Lab.stop, "releasing": Lab.release}
"""For each phase, the request that brings an active allocation into it."""


@dataclass(frozen=True)
class Case:
    """Case of a fault test: the program or link that the fault affects, and the phase of the allocation
    at that time.
    """

    of: str
    phase: Phase

    def __str__(self) -> str:
        return f"{self.of}-{self.phase}"


def _nothing() -> None:
    """Do nothing at the end of a fault that ends by itself."""


@dataclass(frozen=True)
class Fault:
    """Fault of a test: the function `inject` starts it while the allocation is in its phase, and the function `end`
    ends it.

    The context `around` begins before the test requests a stop or release, and ends after `inject`. `guest_dies` is
    true if the fault ends the guest.
    """

    name: str
    inject: Callable[[], None]
    end: Callable[[], None] = _nothing
    around: AbstractContextManager[object] = field(default_factory=nullcontext)
    guest_dies: bool = False


def run_case(lab: Lab, phase: Phase, fault: Fault) -> None:
    """Bring an allocation to this phase, inject the fault and check the result. Raises `AssertionError` if a check
    fails.
    """
    until(lab.is_ready, "the node is ready to carry a slice again", 60)
    leaks, before, allocation = lab.leak_check(), lab.lives(), lab.create()
    try:
        _bring_up(lab, allocation, phase)
        with fault.around:
            if phase in _ASKED:
                _ASKED[phase](lab, allocation)
                until(lambda: lab.tasks_in_flight() > 0, f"an order for {phase} is in flight")
            load = _load_of(lab, phase)
            fault.inject()
        fault.end()
        began = time.monotonic()
        if fault.guest_dies:
            until(
                lambda: lab.lives().since(before).starts == 2,
                "the death of the guest is detected, and it is started again",
            )
        until(
            lambda: _converged(lab, allocation, phase),
            f"the system has converged after {fault.name}",
            _left(began),
        )
        if phase == "idle":
            # An idle program has no visible effect: only work shows that it, or another in its place, is back.
            lab.release(allocation)
            released = f"the allocation is released after {fault.name}"
            until(lambda: _converged(lab, allocation, "releasing"), released, _left(began))
        print(f"{fault.name}: {load}; converged in {time.monotonic() - began:.1f} s")
        assert "allocation.failed" not in lab.timeline(allocation)
    finally:
        lab.release_all(allocation)
    ended = began if phase == "releasing" else time.monotonic()
    leaks.await_none(_left(ended))
    _check_none_was_started_twice(lab.lives().since(before), killed=fault.guest_dies)
    assert lab.verified() == []


def _left(began: float) -> float:
    """Return the seconds that remain until the system must have converged."""
    return began + CONVERGED_SECONDS - time.monotonic()


def _bring_up(lab: Lab, allocation: str, phase: Phase) -> None:
    if phase == "provisioning":
        until(lambda: lab.emulators() == 1, "the machine of the allocation is being started")
    else:
        until(lambda: lab.is_active(allocation), f"{allocation} is active", 60)


def _load_of(lab: Lab, phase: Phase) -> str:
    """Return a description of the current load: the running machines or the orders in flight. Raises `AssertionError`
    without a load.
    """
    if phase == "idle":
        machines = lab.machines()
        assert machines, "no load: no machine runs"
        return f"machines {machines}"
    orders = lab.tasks_in_flight()
    assert orders, "no load: no order is in flight"
    return f"{orders} orders in flight"


def _converged(lab: Lab, allocation: str, phase: Phase) -> bool:
    if not lab.is_alive():
        return False
    if phase == "releasing":
        return lab.state(allocation) == "released"
    # The state alone is not sufficient: a machine that was killed is detected as dead a moment later.
    found = (lab.machines(), lab.ports(), lab.emulators())
    if phase == "stopping":
        return lab.state(allocation) == "stopped" and found == ([], [], 0)
    return lab.is_active(allocation) and found == (["slice0"], ["slice0"], 1)


def _check_none_was_started_twice(lives: Lives, *, killed: bool) -> None:
    """Check that the virtual machine was started once, and again only if the fault `killed` it or if libvirtd was
    killed during a start.
    """
    assert lives.starts == 1 + killed + lives.ends("daemon"), lives
    assert ("started", "started") not in pairwise(lives.events), lives
