"""Commands about read models (projections): rebuild a read model, and skip or retry the event that stopped it."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions import projections as keeping
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.handle import Command, Decision, Transaction
from control_plane.histories import histories, projection_facts
from control_plane.origin import Origin
from events.envelope import Recorded
from events.ledger.append import Change
from events.ledger.connection import ledger_connection
from events.ledger.store import read_stream, refuse_unreadable
from events.projections import ProjectionFact
from events.values import Position, stream_of_projection
from read_models import checkpoints
from read_models.generations import IDLE, LIVE, use_table_set
from read_models.projections import PROJECTIONS, Projection


async def projection_history(conn: AsyncConnection, name: str) -> tuple[Recorded[ProjectionFact], ...]:
    """Return all requests about a read model (rebuild, skip, retry) and their results, oldest first."""
    recorded = await read_stream(await ledger_connection(conn), stream_of_projection(name))
    return projection_facts(recorded)


async def projection_histories(
    conn: AsyncConnection,
) -> dict[str, tuple[Recorded[ProjectionFact], ...]]:
    """Return `projection_history` of every read model, by name, with one query."""
    streams = {name: stream_of_projection(name) for name in PROJECTIONS}
    found = await histories(conn, [*streams.values()])
    return {
        name: projection_facts(refuse_unreadable(found.get(stream, ()))) for name, stream in streams.items()
    }


async def stops(conn: AsyncConnection, name: str) -> dict[str, checkpoints.Checkpoint | None]:
    """Return the checkpoints of a read model's live tables and of its idle tables, which a rebuild fills, by table set.
    A checkpoint contains the event that stopped the read model, if there is one.
    """
    found = {}
    for generation in (IDLE, LIVE):
        await use_table_set(conn, generation)
        found[generation] = await checkpoints.find(conn, name)
    return found


def order_rebuild(name: str, origin: Origin) -> Command:
    """Return the command that requests a rebuild of a read model; a repeated request changes nothing."""

    async def command(transaction: Transaction) -> Decision:
        history = await _history(transaction.conn, name)
        facts = keeping.order_rebuild(name, keeping.fold(history))
        return _decision(name, len(history), facts, origin, transaction)

    return command


def skip_event(name: str, position: Position, reason: str, origin: Origin) -> Command:
    """Let a stopped read model skip the event at `position`. Raises `Conflict` unless this event stopped it."""

    async def command(transaction: Transaction) -> Decision:
        history = await _history(transaction.conn, name)
        fact = keeping.skip(name, position, reason, stopped_at(await stops(transaction.conn, name)))
        return _decision(name, len(history), (fact,), origin, transaction)

    return command


def retry(name: str, origin: Origin) -> Command:
    """Let a stopped read model retry the event that stopped it. Raises `Conflict` if it is not stopped."""

    async def command(transaction: Transaction) -> Decision:
        history = await _history(transaction.conn, name)
        facts = keeping.retry(name, stopped_at(await stops(transaction.conn, name)))
        return _decision(name, len(history), facts, origin, transaction)

    return command


def named(name: str) -> Projection:
    """Return the read model with this name. Raises `UnknownName`."""
    if name not in PROJECTIONS:
        known = ", ".join(PROJECTIONS)
        raise UnknownName(
            Objection("unknown_projection", f"no read model is named {name!r}; choose one of {known}")
        )
    return PROJECTIONS[name]


async def _history(conn: AsyncConnection, name: str) -> tuple[Recorded[ProjectionFact], ...]:
    named(name)
    return await projection_history(conn, name)


def stopped_at(found: Mapping[str, checkpoints.Checkpoint | None]) -> frozenset[Position]:
    """Return the positions of the events that stopped the tables with these checkpoints."""
    return frozenset(each.stop.at for each in found.values() if each is not None and each.stop is not None)


def _decision(
    name: str, version: int, facts: tuple[ProjectionFact, ...], origin: Origin, transaction: Transaction
) -> Decision:
    changes = (Change(stream_of_projection(name), version, facts),) if facts else ()
    return Decision(changes, origin.at(transaction.now))
