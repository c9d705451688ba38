"""The one path from a slice's desired state to the host: read the observed state, plan, and run the steps.

Orders, restarts and the survey all use this path, so that there is no second path "for recovery". No step runs before
every aspect is read: if one aspect cannot be read, nothing is changed. Only `close` is different: it reads just the
network paths that it removes.

An unreadable host is read again until a timeout. If the host refuses a step, the start of a slice ends, but a repair or
a removal continues with the other aspects. While a slice boots, it is compared again every few seconds, so that a
machine or a daemon that dies meanwhile is repaired by the same comparison.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import structlog

from node_agent.host.host import Host
from node_agent.host.slices import Aspect, HostUnreadable, Slice, SliceNetwork, Step
from node_agent.host.snapshots import host_snapshot
from node_agent.runtime.halt import Halt
from node_agent.slots.steps import StepFailed, run_steps
from node_agent.transport.progress import expect_steps

log = structlog.get_logger(__name__)

Done = TypeVar("Done")
_COMPARE_AGAIN_SECONDS: Final = 0.5
_CLOSED_FIRST: Final = ("translation",)
"""Aspects that `close` removes before all others."""


def planned(desired: Slice, host: Host) -> tuple[Step, ...]:
    """Return the steps that make the host match the desired state of a slice. Raises `HostUnreadable`."""
    return tuple(step for aspect in host.aspects for step in aspect.to_apply(desired))


def make(desired: Slice, host: Host, halt: Halt) -> None:
    """Make the host match the desired state of a slice. Raises `StepFailed`, `HostUnreadable`, `Halted`."""
    with _snapshot(host):
        _carry_out(
            host.aspects, lambda aspect: aspect.to_apply(desired), lambda steps: run_steps(steps, halt)
        )


def repair(
    desired: Slice, host: Host, halt: Halt, begun: Callable[[Sequence[Step]], object]
) -> tuple[StepFailed, ...]:
    """Make the host match the desired state of a slice while its guest runs. Raises `HostUnreadable`, `Halted`.

    A refused step in one aspect does not prevent the work on the other aspects. The refusals are returned. `begun`
    is called with the steps of each aspect before they run; if it raises an exception, they do not run.
    """
    return _by_aspect(host.aspects, lambda aspect: aspect.to_apply(desired), host, halt, begun)


def planned_off(stopped: SliceNetwork, host: Host) -> tuple[Step, ...]:
    """Return the steps that switch a slice off; empty if it is off. Raises `HostUnreadable`."""
    return tuple(step for aspect in host.aspects for step in aspect.to_stop(stopped))


def switch_off(stopped: SliceNetwork, host: Host, halt: Halt) -> tuple[StepFailed, ...]:
    """Stop the slice's machine and close its network paths; keep its disk and its address.

    A refused step does not prevent the work on the other aspects. The refusals are returned. Raises `HostUnreadable`,
    `Halted`.
    """
    return _by_aspect(host.aspects[::-1], lambda aspect: aspect.to_stop(stopped), host, halt)


def close(network: SliceNetwork, host: Host, halt: Halt) -> None:
    """Close all network paths into and out of a slice that is to be stopped or removed. Raises `Halted`.

    This step runs first and reads no other aspect: an established connection must not survive because a hypervisor
    hangs, or because a guest shuts down slowly. Errors are ignored here, because the complete stop or removal that
    follows repeats the attempt and reports errors.
    """
    for aspect in host.aspects:
        if aspect.name in _CLOSED_FIRST:
            with suppress(HostUnreadable, StepFailed):
                steps = aspect.to_remove(network)
                expect_steps(len(steps))
                run_steps(steps, halt)


def remove_all(network: SliceNetwork, host: Host, halt: Halt) -> tuple[StepFailed, ...]:
    """Remove all objects of a slot from the host, the machine first. Raises `HostUnreadable`, `Halted`.

    A refused step in one aspect does not prevent the removal of the other aspects. The refusals are returned.
    """
    return _by_aspect(host.aspects[::-1], lambda aspect: aspect.to_remove(network), host, halt)


def _by_aspect(
    aspects: Sequence[Aspect],
    plan: Callable[[Aspect], tuple[Step, ...]],
    host: Host,
    halt: Halt,
    begun: Callable[[Sequence[Step]], object] = lambda _: None,
) -> tuple[StepFailed, ...]:
    refusals: list[StepFailed] = []

    def run(steps: Sequence[Step]) -> None:
        begun(steps)
        try:
            run_steps(steps, halt)
        except StepFailed as refusal:
            refusals.append(refusal)

    with _snapshot(host):
        _carry_out(aspects, plan, run)
    return tuple(refusals)


def still_on(stopped: SliceNetwork, host: Host) -> tuple[str, ...]:
    """Read every aspect again and describe the parts of a stopped slice that run or can be reached.

    Raises `HostUnreadable`.
    """
    return tuple(found for aspect in host.aspects for found in aspect.still_on(stopped))


def leftovers(network: SliceNetwork, host: Host) -> tuple[str, ...]:
    """Read every aspect again and describe the objects of a slot that remain on the host. Raises `HostUnreadable`."""
    return tuple(left for aspect in host.aspects for left in aspect.remains(network))


def retry_while_unreadable(attempt: Callable[[], Done], *, until: float, halt: Halt) -> Done:
    """Return the result of `attempt`, which is retried while it raises `HostUnreadable`.

    After the monotonic time `until`, the last `HostUnreadable` is raised. Also raises `Halted`.
    """
    while True:
        try:
            return attempt()
        except HostUnreadable as unreadable:
            if time.monotonic() >= until:
                raise
            log.warning("host_unreadable", reason=str(unreadable))
            halt.wait(_COMPARE_AGAIN_SECONDS)


@contextmanager
def _snapshot(host: Host) -> Iterator[None]:
    with host_snapshot():
        host.start_reading()
        yield


def _carry_out(
    aspects: Sequence[Aspect],
    plan: Callable[[Aspect], tuple[Step, ...]],
    run: Callable[[Sequence[Step]], None],
) -> None:
    plans = [plan(aspect) for aspect in aspects]
    expect_steps(sum(map(len, plans)))
    changed = False
    for aspect, planned in zip(aspects, plans, strict=True):
        # A plan that was made before a change to another aspect may be outdated (a tap was created again, for example).
        steps = plan(aspect) if changed else planned
        run(steps)
        changed = changed or bool(steps)
