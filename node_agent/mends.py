"""One aspect of a slice made good, or taken away: what an operation does to a host.

The whole host is looked at first, as for every repair: an operation on one aspect acts on a complete snapshot too, so
it never mends a port by a picture in which the machine could not be seen. Only the steps of the aspects asked for are
run.
"""

from collections.abc import Callable, Iterable, Sequence

from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.progress import expect_steps
from node_agent.slices import Aspect, Slice, SliceNetwork, Step
from node_agent.steps import run_steps

Planned = tuple[tuple[str, tuple[Step, ...]], ...]
"""Names of aspects that differ from what is wanted, each with the steps that would mend it."""


def mend(wanted: Slice, names: Sequence[str], host: Host, halt: Halt) -> tuple[str, ...]:
    """Make these aspects what they should be; the names of the steps taken.

    Raises `StepFailed`, `HostUnreadable`, `Halted`.
    """
    return _carry_out(host.aspects, names, lambda aspect: aspect.to_apply(wanted), halt)


def withdraw(gone: SliceNetwork, names: Sequence[str], host: Host, halt: Halt) -> tuple[str, ...]:
    """Take these aspects of a slot away, in the opposite order; raises as `mend` does."""
    return _carry_out(host.aspects[::-1], names, lambda aspect: aspect.to_remove(gone), halt)


def remaining(gone: SliceNetwork, names: Sequence[str], host: Host) -> tuple[str, ...]:
    """What a fresh look still finds of these aspects. Raises `HostUnreadable`."""
    return tuple(left for aspect in host.aspects if aspect.name in names for left in aspect.remains(gone))


def missing(wanted: Slice, host: Host) -> Planned:
    """What differs from a slice that is wanted. Raises `HostUnreadable`."""
    return _differing((aspect.name, aspect.to_apply(wanted)) for aspect in host.aspects)


def switched_on(stopped: SliceNetwork, host: Host) -> Planned:
    """What runs or can be reached of a slice that is to be off. Raises `HostUnreadable`."""
    return _differing((aspect.name, aspect.to_stop(stopped)) for aspect in host.aspects[::-1])


def too_much(gone: SliceNetwork, host: Host) -> Planned:
    """What is there of a slot that is to carry nothing. Raises `HostUnreadable`."""
    return _differing((aspect.name, aspect.to_remove(gone)) for aspect in host.aspects[::-1])


def _differing(plans: Iterable[tuple[str, tuple[Step, ...]]]) -> Planned:
    return tuple((name, steps) for name, steps in plans if steps)


def _carry_out(
    aspects: Sequence[Aspect], names: Sequence[str], plan: Callable[[Aspect], tuple[Step, ...]], halt: Halt
) -> tuple[str, ...]:
    plans = {aspect.name: plan(aspect) for aspect in aspects}
    steps = tuple(step for name, planned in plans.items() if name in names for step in planned)
    expect_steps(len(steps))
    run_steps(steps, halt)
    return tuple(step.name for step in steps)
