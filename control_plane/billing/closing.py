"""Command that closes a billing period (PLT-9)."""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.billing import Bounds, UsageState, close
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.billing.periods import PeriodClosed
from events.ledger.append import Change
from events.ledger.connection import fetch_value, ledger_connection
from events.ledger.store import read_stream
from events.values import PeriodName, stream_of_billing
from read_models.usage.tables import known_to

# Times of recording are not in the order of positions, so the first event after the usage does not decide alone.
_MISSING: Final = "select exists (select from ledger.event where position > %s and recorded_at < %s)"


def close_period(name: PeriodName, bounds: Bounds, origin: Origin) -> Command:
    """Close a billing period. Closing it again changes nothing. Raises `Conflict`.

    Of two concurrent requests, the append refuses the second, which then runs again.
    """

    async def command(transaction: Transaction) -> Decision:
        ledger = await ledger_connection(transaction.conn)
        history = await read_stream(ledger, stream_of_billing())
        closed = [each.fact for each in history if isinstance(each.fact, PeriodClosed)]
        usage = await _state(transaction.conn, bounds)
        facts = close(name, bounds, closed, usage, transaction.now)
        changes = (Change(stream_of_billing(), len(history), facts),) if facts else ()
        return Decision(changes, origin.at(transaction.now))

    return command


async def _state(conn: AsyncConnection, bounds: Bounds) -> UsageState:
    # The position is read first: events that are projected in between can only make the usage more complete.
    position = await known_to(conn)
    missing: bool = await fetch_value(await ledger_connection(conn), _MISSING, [position, bounds.ends_at])
    return UsageState(position, complete_until_end=not missing)
