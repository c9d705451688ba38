"""Repair or removal of single aspects of a slice (such as its link, port or machine), as operations request it.

All aspects are read first, even if the operation names only one: for example, a port is not repaired while the machine
cannot be read. Only the steps of the requested aspects run.
"""

from collections.abc import Callable, Iterable, Sequence

from node_agent.host.host import Host
from node_agent.host.slices import Aspect, Slice, SliceNetwork, Step
from node_agent.runtime.halt import Halt
from node_agent.slots.steps import run_steps
from node_agent.transport.progress import expect_steps

Planned = tuple[tuple[str, tuple[Step, ...]], ...]
"""Aspects that differ from the desired state: the name of each, and the steps that would repair it."""


def repair_aspects(wanted: Slice, names: Sequence[str], host: Host, halt: Halt) -> tuple[str, ...]:
    """Repair the named aspects of a slice, and return the names of the steps that ran.

    Raises `StepFailed`, `HostUnreadable`, `Halted`.
    """
    return _run(host.aspects, names, lambda aspect: aspect.to_apply(wanted), halt)


def remove_aspects(gone: SliceNetwork, names: Sequence[str], host: Host, halt: Halt) -> tuple[str, ...]:
    """Remove the objects of the named aspects of a slot, in reverse order, and return the names of the steps that ran.

    Raises `StepFailed`, `HostUnreadable`, `Halted`.
    """
    return _run(host.aspects[::-1], names, lambda aspect: aspect.to_remove(gone), halt)


def remains_of(gone: SliceNetwork, names: Sequence[str], host: Host) -> tuple[str, ...]:
    """Read the named aspects of a slot again, and describe the objects that still exist. Raises `HostUnreadable`."""
    return tuple(left for aspect in host.aspects if aspect.name in names for left in aspect.remains(gone))


def steps_to_apply(wanted: Slice, host: Host) -> Planned:
    """Return the aspects that differ from the desired slice, with their repair steps. Raises `HostUnreadable`."""
    return _differing((aspect.name, aspect.to_apply(wanted)) for aspect in host.aspects)


def steps_to_stop(stopped: SliceNetwork, host: Host) -> Planned:
    """Return the aspects in which a stopped slice still runs or is reachable, with the steps that switch them off.

    Raises `HostUnreadable`.
    """
    return _differing((aspect.name, aspect.to_stop(stopped)) for aspect in host.aspects[::-1])


def steps_to_remove(gone: SliceNetwork, host: Host) -> Planned:
    """Return the aspects of an empty slot that still have objects on the host, with the steps that remove them.

    Raises `HostUnreadable`.
    """
    return _differing((aspect.name, aspect.to_remove(gone)) for aspect in host.aspects[::-1])


def _differing(plans: Iterable[tuple[str, tuple[Step, ...]]]) -> Planned:
    return tuple((name, steps) for name, steps in plans if steps)


def _run(
    aspects: Sequence[Aspect], names: Sequence[str], plan: Callable[[Aspect], tuple[Step, ...]], halt: Halt
) -> tuple[str, ...]:
    plans = {aspect.name: plan(aspect) for aspect in aspects}
    steps = tuple(step for name, planned in plans.items() if name in names for step in planned)
    expect_steps(len(steps))
    run_steps(steps, halt)
    return tuple(step.name for step in steps)
