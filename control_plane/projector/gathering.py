"""Collection of events in memory, to write their effects on read models together; and the error of an event that cannot
be processed.
"""

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.projections import projection_history
from control_plane.decisions.projections import fold
from control_plane.outage import DATABASE_UNAVAILABLE
from events.catalog import CATALOG
from events.envelope import Recorded
from events.facts import Fact, Unreadable
from events.ledger.store import refuse_unreadable
from events.values import Position
from read_models.projections import Projection
from read_models.rows import Patched, Span, Summed

Skips = Mapping[str, frozenset[Position]]
"""The positions of the events that each projection skips, by the name of the projection."""
Add = Callable[[Recorded[Fact]], None]


class Stopped(Exception):
    """A projection cannot process the event at `at`, or the database rejected a row of that event or a later one."""

    def __init__(self, projection: str, at: Position, error: str) -> None:
        super().__init__(f"projection {projection} stopped at position {at}: {error}")
        self.projection, self.at, self.error = projection, at, error


class Gathering:
    """Collects events in ledger order, and writes the resulting rows of several projections together."""

    def __init__(self, projections: Sequence[Projection], skips: Skips) -> None:
        self._parts = [(each, part, part.gather()) for each in projections for part in each.parts]
        self._projections, self._skips = projections, skips
        self._consumers = _Consumers(self._consumers_of)
        self.events = 0

    def add(self, events: Sequence[Recorded[Fact]]) -> None:
        """Add the effects of events in memory. Raises `Stopped` if a projection cannot process one of them."""
        self.events += len(events)
        consumers = self._consumers
        for each in events:
            for projection, add in consumers[type(each.fact)]:
                try:
                    add(each)
                except Exception as error:  # a defective event stops only its own projection, visibly
                    raise _stopped(projection, each.position, error) from error

    async def write(self, conn: AsyncConnection, span: Span, *, patches: bool = True) -> None:
        """Write the gathered events to the connection's table set, which then has all events up to the end of `span`.

        If `patches` is false, updates of existing rows and sums are not written yet but stay gathered, so that all
        updates of one row are merged into one. Raises `Stopped`.
        """
        self.events = 0
        for projection, part, gathered in self._parts:
            if isinstance(part, Patched | Summed) and not patches:
                continue
            try:
                await gathered.write(conn, span)
            except DATABASE_UNAVAILABLE:
                raise
            except Exception as error:  # a defective event stops only its own projection, visibly
                raise _stopped(projection, Position(span.after + 1), error) from error

    def _consumers_of(self, fact: type[Fact]) -> tuple[tuple[Projection, Add], ...]:
        """Return the tables (with their projections) that consume events with this type of fact."""
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


class _Consumers(dict[type[Fact], tuple[tuple[Projection, Add], ...]]):
    """Cache of the tables that consume each type of fact: most types concern few tables."""

    def __init__(self, of_type: Callable[[type[Fact]], tuple[tuple[Projection, Add], ...]]) -> None:
        super().__init__()
        self._consumers_of = of_type

    def __missing__(self, fact: type[Fact]) -> tuple[tuple[Projection, Add], ...]:
        self[fact] = found = self._consumers_of(fact)
        return found


def refuse(recorded: Recorded[Fact]) -> None:
    """Refuse an unreadable event. Raises `UnreadableEvent`."""
    refuse_unreadable([recorded])


async def skips_of(conn: AsyncConnection, projections: Sequence[Projection]) -> Skips:
    """Return the positions of the events that operators ordered each projection to skip."""
    return {each.name: fold(await projection_history(conn, each.name)).skipped for each in projections}


def irrelevant_types(projections: Sequence[Projection]) -> tuple[str, ...]:
    """Return the event types that these projections need not read. A type unknown to this release must be read."""
    return tuple(
        name
        for name, shape in CATALOG.items()
        if not any(each.concerned_by(shape.fact) for each in projections)
    )
