"""The one road from a wish to the host: look at everything, run what differs, wait until it answers.

Orders, restarts and the survey all come through here, so that there is no second way "for recovery". Nothing is
touched before every aspect could be read (a repair acts only on a complete snapshot), but for `close`, which decides
nothing on what it sees. An unreadable host is waited for. A refused step ends an attempt to bring a slice up; in a
repair and in a removal it ends the work on its own aspect alone. While a slice boots it is looked at again every few
seconds, so that a machine or a daemon that dies meanwhile is made good by the same comparison.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import structlog

from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.looks import one_look
from node_agent.progress import expect_steps
from node_agent.slices import Aspect, HostUnreadable, Slice, SliceNetwork, Step
from node_agent.steps import StepFailed, run_steps

log = structlog.get_logger(__name__)

Done = TypeVar("Done")
_LOOK_AGAIN_SECONDS: Final = 0.5
_CLOSED_FIRST: Final = ("translation",)


def planned(wanted: Slice, host: Host) -> tuple[Step, ...]:
    """The steps that would make the host carry `wanted`; none when it does. Raises `HostUnreadable`."""
    return tuple(step for aspect in host.aspects for step in aspect.to_apply(wanted))


def make(wanted: Slice, host: Host, halt: Halt) -> None:
    """Make the host carry `wanted`. Raises `StepFailed`, `HostUnreadable`, `Halted`."""
    with _looking(host):
        _carry_out(host.aspects, lambda aspect: aspect.to_apply(wanted), lambda steps: run_steps(steps, halt))


def repair(
    wanted: Slice, host: Host, halt: Halt, begun: Callable[[Sequence[Step]], object]
) -> tuple[StepFailed, ...]:
    """Make the host carry `wanted` around its guest, which runs. Raises `HostUnreadable`, `Halted`.

    A refusal in one aspect does not keep the others. The refusals are returned. `begun` hears of steps before they are
    taken, and may raise.
    """
    return _by_aspect(host.aspects, lambda aspect: aspect.to_apply(wanted), host, halt, begun)


def planned_off(stopped: SliceNetwork, host: Host) -> tuple[Step, ...]:
    """The steps that would switch the slice off; none when it is. Raises `HostUnreadable`."""
    return tuple(step for aspect in host.aspects for step in aspect.to_stop(stopped))


def switch_off(stopped: SliceNetwork, host: Host, halt: Halt) -> tuple[StepFailed, ...]:
    """Have nothing of the slice run or reachable, and keep the rest. Raises and returns as `take_away`."""
    return _by_aspect(host.aspects[::-1], lambda aspect: aspect.to_stop(stopped), host, halt)


def close(network: SliceNetwork, host: Host, halt: Halt) -> None:
    """Let nothing in to a slice that is to go, or out of it. Raises `Halted`.

    Before all else, and by a look at nothing else: a connection that came in must not live on because a hypervisor
    hangs, or because a guest takes its time to shut down. What cannot be read or is refused here is tried again with
    all the rest, and told.
    """
    for aspect in host.aspects:
        if aspect.name in _CLOSED_FIRST:
            with suppress(HostUnreadable, StepFailed):
                steps = aspect.to_remove(network)
                expect_steps(len(steps))
                run_steps(steps, halt)


def take_away(gone: SliceNetwork, host: Host, halt: Halt) -> tuple[StepFailed, ...]:
    """Take everything of the slot away, the machine first. Raises `HostUnreadable`, `Halted`.

    A refusal in one aspect does not keep the others: what can be closed is closed. The refusals are returned.
    """
    return _by_aspect(host.aspects[::-1], lambda aspect: aspect.to_remove(gone), host, halt)


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

    with _looking(host):
        _carry_out(aspects, plan, run)
    return tuple(refusals)


def still_on(stopped: SliceNetwork, host: Host) -> tuple[str, ...]:
    """What a fresh look at every aspect still finds that runs or can be reached. Raises `HostUnreadable`."""
    return tuple(found for aspect in host.aspects for found in aspect.still_on(stopped))


def leftovers(gone: SliceNetwork, host: Host) -> tuple[str, ...]:
    """What a fresh look at every aspect still finds. Raises `HostUnreadable`."""
    return tuple(left for aspect in host.aspects for left in aspect.remains(gone))


def patiently(attempt: Callable[[], Done], *, until: float, halt: Halt) -> Done:
    """Try again while the host cannot be read, until the monotonic time `until`; then raise `HostUnreadable`."""
    while True:
        try:
            return attempt()
        except HostUnreadable as unreadable:
            if time.monotonic() >= until:
                raise
            log.warning("host_unreadable", reason=str(unreadable))
            halt.wait(_LOOK_AGAIN_SECONDS)


@contextmanager
def _looking(host: Host) -> Iterator[None]:
    with one_look():
        host.look_ahead()
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
        # A plan made before another aspect changed may be of a host that is no more (a tap made anew, say).
        steps = plan(aspect) if changed else planned
        run(steps)
        changed = changed or bool(steps)
