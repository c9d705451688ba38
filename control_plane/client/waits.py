"""Waiting until an allocation or a task reaches a state. Pure: the clients follow the events."""

from dataclasses import dataclass
from typing import Final

from control_plane.client.answers import Allocation, Reason, Task
from control_plane.client.errors import NotReached, TimedOut
from control_plane.client.timeline import Timeline

ENDS: Final = frozenset({"releasing", "failed", "released"})
"""States of an allocation that is ending or has ended: it can no longer reach a state outside this set."""
UNFINISHED: Final = frozenset({"due", "sent", "waiting"})
"""States of a task that has not ended yet."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The state that an allocation must reach. States before the event with version `since` do not count, because the
    allocation may have been in the same state before.
    """

    state: str
    since: int = 0

    def over(self, timeline: Timeline) -> bool:
        """Return whether the wait is over: the state is reached, or cannot be reached any more."""
        if timeline.version < self.since:
            return False
        if self.state == "released":
            return timeline.over
        return timeline.state in {self.state, *ENDS}


def reached(found: Allocation, state: str) -> Allocation:
    """Return the allocation if it is in this state. Raises `NotReached` if it is in another state."""
    if found.state == state:
        return found
    raise NotReached(
        f"allocation {found.id} did not become {state}; it is {found.state}{_because(found.reason)}",
        found.state,
    )


def done(found: Task, state: str) -> Task:
    """Return the task if it is in this state. Raises `NotReached` if it is in another state."""
    if found.state == state:
        return found
    raise NotReached(
        f"task {found.id} did not become {state}; it is {found.state}{_because(found.reason)}", found.state
    )


def late(what: str, state: str, timeout: float) -> TimedOut:
    """Return the error of a wait that timed out."""
    return TimedOut(f"{what} did not become {state} within {timeout:g} s; the operation continues")


def _because(reason: Reason | None) -> str:
    return f": {reason.message} [{reason.code}]" if reason else ""
