"""What an allocation's events say about it, folded one by one: its state, since when, and why.

Only the allocation's own stream moves it. The steps carry the ledger's times, so what is shown as the time of a
state is the control plane's, whenever the news came here.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_plane.cli.answers import Event

_ENTERS: Final = {
    "allocation.requested": "requested",
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
    """A state, and the event by which it began: its time, and its number in the stream."""

    state: str
    since: datetime
    version: int


@dataclass(frozen=True, slots=True)
class Story:
    """`steps` are the states so far, the last being the present one; `remaining` counts slots not yet emptied."""

    allocation: str
    steps: tuple[Step, ...] = ()
    remaining: int = 0
    latest: Event | None = None

    @property
    def state(self) -> str:
        return self.steps[-1].state if self.steps else "requested"

    @property
    def version(self) -> int:
        """How many of its events were told."""
        return 0 if self.latest is None else self.latest.version

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.state == "released" or (self.state == "failed" and self.remaining == 0)

    def durations(self) -> tuple[tuple[str, float], ...]:
        """Each state that has ended, with the seconds it took."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return tuple((step.state, (after.since - step.since).total_seconds()) for step, after in pairs)

    def since(self, version: int) -> "Story":
        """Without the states that had ended by this event."""
        ended = sum(1 for step in self.steps if step.version <= version)
        return replace(self, steps=self.steps[max(0, ended - 1) :])

    def then(self, event: Event) -> "Story":
        if event.stream != f"allocation-{self.allocation}":
            return self
        after = replace(self, latest=event, remaining=self._remaining(event))
        state = self._entered(event)
        if state is None or (state == self.state and self.steps):
            return after
        return replace(after, steps=(*self.steps, Step(state, event.recorded_at, event.version)))

    def _entered(self, event: Event) -> str | None:
        if event.type == "allocation.slice_starting":
            # After an interruption a slice starts again, and the allocation is called "starting" all the while.
            return "provisioning" if self.state == "placed" else None
        return _ENTERS.get(event.type)

    def _remaining(self, event: Event) -> int:
        match event.type, event.data.get("slots"):
            case "allocation.placed", [*slots]:
                return len(slots)
            case "allocation.replaced", [*slots]:
                return self.remaining + len(slots)
            case "allocation.slice_removed" | "allocation.slice_removal_waived", _:
                return self.remaining - 1
            case _:
                return self.remaining
