"""The timeline of an allocation, computed from its events one by one: its states and when each began.

Only events of the allocation's own stream change the state. A state begins at the ledger's time of its event, so that
the displayed time does not depend on when the event arrived.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_plane.client.answers import Event

_ENTERS: Final = {
    "allocation.requested": "requested",
    "allocation.queued": "waiting",
    "allocation.placed": "placed",
    "allocation.replaced": "placed",
    "allocation.activated": "active",
    "allocation.slice_interrupted": "starting",
    "allocation.stopping": "stopping",
    "allocation.stopped": "stopped",
    "allocation.starting": "starting",
    "allocation.releasing": "releasing",
    "allocation.failed": "failed",
    "allocation.released": "released",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A state of an allocation, with the time and the stream version of the event that began the state."""

    state: str
    since: datetime
    version: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of one allocation. The last of `steps` is the present state; `remaining` counts the slots that are
    not emptied yet.
    """

    allocation: str
    steps: tuple[Step, ...] = ()
    remaining: int = 0
    latest: Event | None = None

    @property
    def state(self) -> str:
        return self.steps[-1].state if self.steps else "requested"

    @property
    def version(self) -> int:
        """Number of events of the allocation that the timeline includes."""
        return 0 if self.latest is None else self.latest.version

    @property
    def over(self) -> bool:
        """Whether the allocation has ended and no further event will follow."""
        return self.state == "released" or (self.state == "failed" and self.remaining == 0)

    def durations(self) -> tuple[tuple[str, float], ...]:
        """Return each past state of the allocation with its duration in seconds."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return tuple((step.state, (after.since - step.since).total_seconds()) for step, after in pairs)

    def since(self, version: int) -> "Timeline":
        """Return the timeline without the states that ended before the event with this version."""
        ended = sum(1 for step in self.steps if step.version <= version)
        return replace(self, steps=self.steps[max(0, ended - 1) :])

    def then(self, event: Event) -> "Timeline":
        if event.stream != f"allocation-{self.allocation}":
            return self
        after = replace(self, latest=event, remaining=self._remaining(event))
        state = self._entered(event)
        if state is None or (state == self.state and self.steps):
            return after
        return replace(after, steps=(*self.steps, Step(state, event.recorded_at, event.version)))

    def _entered(self, event: Event) -> str | None:
        if event.type == "allocation.slice_starting":
            # After an interruption a slice starts again, while the state of the allocation remains "starting".
            return "provisioning" if self.state == "placed" else None
        return _ENTERS.get(event.type)

    def _remaining(self, event: Event) -> int:
        match event.type, event.data.get("slots"):
            case "allocation.placed", [*slots]:
                return len(slots)
            case "allocation.replaced", [*slots]:
                return self.remaining + len(slots)
            case "allocation.slice_removed" | "allocation.slice_removal_overridden", _:
                return self.remaining - 1
            case _:
                return self.remaining
