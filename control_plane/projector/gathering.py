"""What a part of the log does to some projections, gathered and then written at once; and what stops one of them."""

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.projections import projection_history
from control_plane.decisions.projections import fold
from control_plane.outage import DATABASE_AWAY
from events.catalog import CATALOG
from events.envelope import Recorded
from events.facts import Fact, Unreadable
from events.store import refuse_unreadable
from events.values import Position
from read_models.projections import Projection
from read_models.rows import Span

Skips = Mapping[str, frozenset[Position]]
"""By projection, the positions that it passes over."""
Add = Callable[[Recorded[Fact]], None]


class Stopped(Exception):
    """A projection cannot deal with an event among those from `at` on; with one event, it is that one."""

    def __init__(self, projection: str, at: Position, error: str) -> None:
        super().__init__(f"projection {projection} stops at {at}: {error}")
        self.projection, self.at, self.error = projection, at, error


class Gathering:
    """Events for some projections, in the log's order."""

    def __init__(self, projections: Sequence[Projection], skips: Skips) -> None:
        self._parts = [(each, part, part.gather()) for each in projections for part in each.parts]
        self._projections, self._skips = projections, skips
        self._concerned = _Concerned(self._of_type)
        self._first: Position | None = None
        self.events = 0

    def add(self, events: Sequence[Recorded[Fact]]) -> None:
        """Take in more events. Raises `Stopped`."""
        if not events:
            return
        self.events += len(events)
        self._first = self._first or events[0].position
        concerned = self._concerned
        projection = self._projections[0]
        try:
            for each in events:
                for projection, add in concerned[type(each.fact)]:  # noqa: B007 (said of the one that fails)
                    add(each)
        except Exception as error:  # whatever is wrong with one event must stop its projection alone, visibly
            raise self._stopped(projection, error) from error

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        """Bring the tables that the connection is turned to up to the span that they stood in. Raises `Stopped`."""
        for projection, _, gathered in self._parts:
            try:
                await gathered.write(conn, span)
            except DATABASE_AWAY:
                raise
            except Exception as error:  # as above
                raise self._stopped(projection, error) from error

    def _stopped(self, projection: Projection, error: Exception) -> Stopped:
        return Stopped(projection.name, self._first or Position(0), f"{type(error).__name__}: {error}")

    def _of_type(self, fact: type[Fact]) -> tuple[tuple[Projection, Add], ...]:
        """What takes in events with a fact of a type."""
        if fact is Unreadable:
            return tuple((each, self._unless_skipped(each, refuse)) for each in self._projections)
        return tuple(
            (projection, self._unless_skipped(projection, gathered.add))
            for projection, part, gathered in self._parts
            if issubclass(fact, part.facts)
        )

    def _unless_skipped(self, projection: Projection, add: Add) -> Add:
        skipped = self._skips[projection.name]

        def add_unless_skipped(recorded: Recorded[Fact]) -> None:
            if recorded.position not in skipped:
                add(recorded)

        return add_unless_skipped if skipped else add


class _Concerned(dict[type[Fact], tuple[tuple[Projection, Add], ...]]):
    """Worked out once for each type of fact: most facts concern few tables."""

    def __init__(self, of_type: Callable[[type[Fact]], tuple[tuple[Projection, Add], ...]]) -> None:
        super().__init__()
        self._of_type = of_type

    def __missing__(self, fact: type[Fact]) -> tuple[tuple[Projection, Add], ...]:
        self[fact] = found = self._of_type(fact)
        return found


def refuse(recorded: Recorded[Fact]) -> None:
    """Raises `UnreadableEvent`."""
    refuse_unreadable([recorded])


async def skips_of(conn: AsyncConnection, projections: Sequence[Projection]) -> Skips:
    """What somebody let each of them pass over."""
    return {each.name: fold(await projection_history(conn, each.name)).skipped for each in projections}


def of_no_concern(projections: Sequence[Projection]) -> tuple[str, ...]:
    """Types of event that need not be read for them. One that this release does not know is never among these."""
    return tuple(
        name
        for name, shape in CATALOG.items()
        if not any(each.concerned_by(shape.fact) for each in projections)
    )
