"""Commands about read models: rebuild one, and deal with what stopped it."""

from typing import cast

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions import projections as keeping
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.append import Change
from events.connection import ledger_connection
from events.envelope import Recorded
from events.projections import ProjectionFact
from events.store import read_stream
from events.values import Position, stream_of_projection
from read_models import checkpoints
from read_models.generations import IDLE, LIVE, turn_to
from read_models.projections import PROJECTIONS, Projection


async def projection_history(conn: AsyncConnection, name: str) -> tuple[Recorded[ProjectionFact], ...]:
    """Everything that was ordered of a read model, oldest first."""
    recorded = await read_stream(await ledger_connection(conn), stream_of_projection(name))
    return cast(tuple[Recorded[ProjectionFact], ...], recorded)


async def stops(conn: AsyncConnection, name: str) -> dict[str, checkpoints.Checkpoint | None]:
    """How far the live tables and those of a rebuild are, by the set's name."""
    found = {}
    for generation in (IDLE, LIVE):
        await turn_to(conn, generation)
        found[generation] = await checkpoints.find(conn, name)
    return found


def order_rebuild(name: str, origin: Origin) -> Command:
    async def command(transaction: Transaction) -> Decision:
        history = await _history(transaction.conn, name)
        facts = keeping.order_rebuild(name, keeping.fold(history))
        return _decision(name, len(history), facts, origin, transaction)

    return command


def skip_event(name: str, position: Position, reason: str, origin: Origin) -> Command:
    """Let a stopped read model pass over the event. Raises `Conflict` where it does not stop it."""

    async def command(transaction: Transaction) -> Decision:
        history = await _history(transaction.conn, name)
        fact = keeping.skip(name, position, reason, await _stopped_at(transaction.conn, name))
        return _decision(name, len(history), (fact,), origin, transaction)

    return command


def retry(name: str, origin: Origin) -> Command:
    """Have a stopped read model try again. Raises `Conflict` when it is not stopped."""

    async def command(transaction: Transaction) -> Decision:
        history = await _history(transaction.conn, name)
        facts = keeping.retry(name, await _stopped_at(transaction.conn, name))
        return _decision(name, len(history), facts, origin, transaction)

    return command


def named(name: str) -> Projection:
    """The read model of that name. Raises `UnknownName`."""
    if name not in PROJECTIONS:
        known = ", ".join(PROJECTIONS)
        raise UnknownName(
            Objection("unknown_projection", f"no projection is named {name!r}; there are {known}")
        )
    return PROJECTIONS[name]


async def _history(conn: AsyncConnection, name: str) -> tuple[Recorded[ProjectionFact], ...]:
    named(name)
    return await projection_history(conn, name)


async def _stopped_at(conn: AsyncConnection, name: str) -> frozenset[Position]:
    found = (await stops(conn, name)).values()
    return frozenset(each.stop.at for each in found if each is not None and each.stop is not None)


def _decision(
    name: str, version: int, facts: tuple[ProjectionFact, ...], origin: Origin, transaction: Transaction
) -> Decision:
    changes = (Change(stream_of_projection(name), version, facts),) if facts else ()
    return Decision(changes, origin.at(transaction.now))
