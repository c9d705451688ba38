"""One way through every fault that real lab nodes are put to: an allocation on its way, the fault, and what must hold.

Within 30 seconds of the fault's end everything has converged; within 30 seconds of its own end the allocation has left
nothing on the hosts and in their queues. A machine is started once, as libvirt's own log says, and again only after it
died. A fault that found no load shows nothing, and fails.
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
"""What brings an active allocation into a phase."""


@dataclass(frozen=True)
class Case:
    """What a fault befalls (a program, a link), and what is under way then."""

    of: str
    phase: Phase

    def __str__(self) -> str:
        return f"{self.of}-{self.phase}"


def _nothing() -> None:
    """It is over at once."""


@dataclass(frozen=True)
class Fault:
    """What is done, once its `load` is there, and how that comes to its end (`relent`).

    `around` holds from before a stop or a release is asked for until it was done. `guest_dies` where the guest cannot
    live on.
    """

    name: str
    strike: Callable[[], None]
    relent: Callable[[], None] = _nothing
    around: AbstractContextManager[object] = field(default_factory=nullcontext)
    guest_dies: bool = False


def hold(lab: Lab, phase: Phase, fault: Fault) -> None:
    """Put an allocation in this phase to the fault. Raises `AssertionError` for what does not hold."""
    until(lab.is_fit, "the node is fit to carry a slice again", 60)
    leaks, before, allocation = lab.leak_check(), lab.lives(), lab.create()
    try:
        _bring_up(lab, allocation, phase)
        with fault.around:
            if phase in _ASKED:
                _ASKED[phase](lab, allocation)
                until(lambda: lab.tasks_under_way() > 0, f"its {phase} is under way")
            load = _load_of(lab, phase)
            fault.strike()
        fault.relent()
        began = time.monotonic()
        if fault.guest_dies:
            until(
                lambda: lab.lives().since(before).starts == 2, "its death is noticed, and it is started again"
            )
        until(lambda: _converged(lab, allocation, phase), f"all is well after {fault.name}", _left(began))
        if phase == "idle":
            # Nobody misses an idle program: that it is back, or another in its place, is shown by work alone.
            lab.release(allocation)
            released = f"the allocation is released after {fault.name}"
            until(lambda: _converged(lab, allocation, "releasing"), released, _left(began))
        print(f"{fault.name}: {load}; converged in {time.monotonic() - began:.1f} s")
        assert "allocation.failed" not in lab.story(allocation)
    finally:
        lab.give_back(allocation)
    ended = began if phase == "releasing" else time.monotonic()
    leaks.await_none(_left(ended))
    _check_none_was_started_twice(lab.lives().since(before), killed=fault.guest_dies)
    assert lab.verified() == []


def _left(began: float) -> float:
    """Seconds until it should all have converged."""
    return began + CONVERGED_SECONDS - time.monotonic()


def _bring_up(lab: Lab, allocation: str, phase: Phase) -> None:
    if phase == "provisioning":
        until(lambda: lab.emulators() == 1, "its machine is being started")
    else:
        until(lambda: lab.is_active(allocation), f"{allocation} is active", 60)


def _load_of(lab: Lab, phase: Phase) -> str:
    """What there is to lose at this moment."""
    if phase == "idle":
        machines = lab.machines()
        assert machines, "no load: no machine runs"
        return f"machines {machines}"
    orders = lab.tasks_under_way()
    assert orders, "no load: no order is under way"
    return f"{orders} orders under way"


def _converged(lab: Lab, allocation: str, phase: Phase) -> bool:
    if not lab.is_heard():
        return False
    if phase == "releasing":
        return lab.state(allocation) == "released"
    # Being told so is not enough: a machine that was killed is only found to be dead a moment later.
    found = (lab.machines(), lab.ports(), lab.emulators())
    if phase == "stopping":
        return lab.state(allocation) == "stopped" and found == ([], [], 0)
    return lab.is_active(allocation) and found == (["slice0"], ["slice0"], 1)


def _check_none_was_started_twice(told: Lives, *, killed: bool) -> None:
    """Once; again after it was `killed`, or after libvirtd ended what it had died in the middle of starting."""
    assert told.starts == 1 + killed + told.ends("daemon"), told
    assert ("started", "started") not in pairwise(told.told), told
