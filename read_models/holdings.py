"""`read.holding`: the history of every claim: its holders and the positions at which they changed (LED-3, LED-8).

There is one row for each time that a claim (on a slot, a MAC address, an IP address or another object) changed its
holder, so the holder at any position is in the last row up to it. A row without a stream means that the claim is free.
"""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.claims import Claim, claims_of
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.tables import metadata
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
    """The holder of a claim from `position` on; `stream` is None if the claim is free."""

    claim: Claim
    position: Position
    stream: StreamId | None


def changes(recorded: Recorded[Fact]) -> list[tuple[str, str, Position, StreamId | None]]:
    """Return the rows of `read.holding` that an event adds: one for each claim that it takes or frees."""
    takes, frees = claims_of(recorded.fact)
    position, stream = recorded.position, recorded.stream
    freed = [(kind, value, position, None) for kind, value in frees]
    return freed + [(kind, value, position, stream) for kind, value in takes]


async def holders_of_claim(conn: AsyncConnection, claim: Claim, *, upto: Position) -> list[Holding]:
    """Return all holders of a claim up to a position, oldest first."""
    return await _find(conn, holding.c.kind == claim.kind, holding.c.value == claim.value, upto=upto)


async def holders_by_suffix(
    conn: AsyncConnection, kind: str, ending: str, *, upto: Position
) -> list[Holding]:
    """Return all holders of the claims of a kind with a value that ends in `/<ending>`: for example, of all claims on
    an IP address, whatever its subnet.
    """
    return await _find(
        conn, holding.c.kind == kind, holding.c.value.endswith(f"/{ending}", autoescape=True), upto=upto
    )


async def _find(conn: AsyncConnection, *which: sa.ColumnElement[bool], upto: Position) -> list[Holding]:
    query = sa.select(holding).where(*which, holding.c.position <= upto).order_by(holding.c.position)
    return [
        Holding(Claim(row.kind, row.value), Position(row.position), row.stream_id)
        for row in await conn.execute(query)
    ]
