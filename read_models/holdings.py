"""`read.holding`: who held what, and from which position on: the history of every claim (LED-3, LED-8).

One row for each time that a slot, a MAC, an address or whatever else has one holder changed it, so that the holder at
any position is the last row up to it. A row without a stream says that nobody holds it from there on.
"""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.claims import Claim, claims_of
from events.envelope import Recorded
from events.facts import Fact
from events.tables import metadata
from events.values import Position, StreamId

holding = sa.Table(
    "holding",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("stream_id", sa.Text),
    schema="read",
)


class Holding(NamedTuple):
    """From `position` on, the stream holds the claim; nobody does where it is None."""

    claim: Claim
    position: Position
    stream: StreamId | None


def changes(recorded: Recorded[Fact]) -> list[tuple[str, str, Position, StreamId | None]]:
    """The rows that an event adds."""
    takes, frees = claims_of(recorded.fact)
    position, stream = recorded.position, recorded.stream
    freed = [(kind, value, position, None) for kind, value in frees]
    return freed + [(kind, value, position, stream) for kind, value in takes]


async def of_claim(conn: AsyncConnection, claim: Claim, *, upto: Position) -> list[Holding]:
    """Everybody who held it up to a position, oldest first."""
    return await _find(conn, holding.c.kind == claim.kind, holding.c.value == claim.value, upto=upto)


async def ending_with(conn: AsyncConnection, kind: str, ending: str, *, upto: Position) -> list[Holding]:
    """The same for every claim of a kind whose value is `<anything>/<ending>`: an address, in whatever subnet."""
    return await _find(
        conn, holding.c.kind == kind, holding.c.value.endswith(f"/{ending}", autoescape=True), upto=upto
    )


async def _find(conn: AsyncConnection, *which: sa.ColumnElement[bool], upto: Position) -> list[Holding]:
    query = sa.select(holding).where(*which, holding.c.position <= upto).order_by(holding.c.position)
    return [
        Holding(Claim(row.kind, row.value), Position(row.position), row.stream_id)
        for row in await conn.execute(query)
    ]
