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
from read_models.rows import Patched, Span

Skips = Mapping[str, frozenset[Position]]
"""By projection, the positions that it passes over."""
Add = Callable[[Recorded[Fact]], None]


class Stopped(Exception):
    """A projection cannot deal with the event at `at`, or with one behind it that the database found wrong."""

    def __init__(self, projection: str, at: Position, error: str) -> None:
        super().__init__(f"projection {projection} stops at {at}: {error}")
        self.projection, self.at, self.error = projection, at, error


class Gathering:
    """Events for some projections, in the log's order."""

    def __init__(self, projections: Sequence[Projection], skips: Skips) -> None:
        self._parts = [(each, part, part.gather()) for each in projections for part in each.parts]
        self._projections, self._skips = projections, skips
        self._concerned = _Concerned(self._of_type)
        self.events = 0

    def add(self, events: Sequence[Recorded[Fact]]) -> None:
        """Take in more events. Raises `Stopped`."""
        self.events += len(events)
        concerned = self._concerned
        for each in events:
            for projection, add in concerned[type(each.fact)]:
                try:
                    add(each)
                except Exception as error:  # one wrong event must stop its projection alone, and visibly
                    raise _stopped(projection, each.position, error) from error

    async def write(self, conn: AsyncConnection, span: Span, *, patches: bool = True) -> None:
        """Bring the tables that the connection is turned to up to the span that the events stood in.

        Without `patches`, these go on being gathered: they merge, however many there are. Raises `Stopped`.
        """
        self.events = 0
        for projection, part, gathered in self._parts:
            if isinstance(part, Patched) and not patches:
                continue
            try:
                await gathered.write(conn, span)
            except DATABASE_AWAY:
                raise
            except Exception as error:  # as above
                raise _stopped(projection, Position(span.after + 1), error) from error

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


def _stopped(projection: Projection, at: Position, error: Exception) -> Stopped:
    return Stopped(projection.name, at, f"{type(error).__name__}: {error}")


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
