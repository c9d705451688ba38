"""Free public addresses and ports, by the ledger's claims. Who takes one meanwhile loses us the race: we look again."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final
from zlib import crc32

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.public_addresses import AddressWish, PortWish, WayWish, candidates, none_is_free
from events.claims import by_any_port, by_port, way_in
from events.ingress import IngressMapping, IngressReserved
from events.tables import claim
from events.values import AllocationId, IngressId, SlotId
from read_models import nodes
from read_models.nodes import NodeRow

_AT_ONCE: Final = 64
_GIVEN: Final = (
    sa.func.jsonb_to_recordset(nodes.node.c.public_addresses)
    .table_valued(
        sa.column("address", sa.Text),
        sa.column("use", sa.Text),
        sa.column("first_port", sa.Integer),
        sa.column("last_port", sa.Integer),
    )
    .render_derived("given", with_types=True)
)
"""The public addresses of a node, a row each."""


def have_free(wishes: Iterable[WayWish]) -> Iterator[sa.ColumnElement[bool]]:
    """Whether the addresses of `nodes.node` have what nobody holds for all of the wishes; for a query over it.

    They never say no where `reserve` would find something for each.
    """
    wanted = list(wishes)
    if whole := sum(isinstance(wish.to, AddressWish) for wish in wanted):
        yield _of_addresses(sa.func.count(), _GIVEN.c.use == "whole", _unheld(_GIVEN.c.address)) >= whole
    ports = [wish.to for wish in wanted if isinstance(wish.to, PortWish)]
    for protocol, count in Counter(to.protocol for to in ports).items():
        yield _of_addresses(sa.func.sum(_unheld_ports(protocol)), _GIVEN.c.use == "ports") >= count
    named = Counter((to.protocol, to.public_port) for to in ports if to.public_port is not None)
    for (protocol, port), count in named.items():
        has = sa.literal(port).between(_GIVEN.c.first_port, _GIVEN.c.last_port)
        unheld = _unheld(by_port(protocol, _GIVEN.c.address, port))
        yield _of_addresses(sa.func.count(), _GIVEN.c.use == "ports", has, unheld) >= count


def _of_addresses(what: sa.ColumnElement[int], *which: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    """Something of a node's addresses, of those that are so."""
    return sa.select(what).select_from(_GIVEN).where(*which).scalar_subquery()


def _unheld(value: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    # A scalar, not an `exists`: the planner would make a join over all claims there are of that.
    held = sa.select(sa.true()).where(claim.c.kind == "port", claim.c.value == value)
    return held.scalar_subquery().is_(None)


def _unheld_ports(protocol: str) -> sa.ColumnElement[int]:
    """How many ports of an address nobody holds."""
    first, last = by_any_port(protocol, _GIVEN.c.address)
    held = sa.select(sa.func.count()).where(claim.c.kind == "port", claim.c.value.between(first, last))
    return _GIVEN.c.last_port - _GIVEN.c.first_port + 1 - held.scalar_subquery()


async def reserve(
    conn: AsyncConnection,
    node: NodeRow,
    wishes: Sequence[tuple[IngressId, SlotId, WayWish]],
    allocation: AllocationId,
) -> tuple[IngressReserved, ...]:
    """A free address or port of the node for each. Raises `Conflict` where there is none."""
    reserved: list[IngressReserved] = []
    for name, slot, wish in wishes:
        # At another place each, or all who ask at once would ask for the same.
        start, besides = crc32(name.encode()), [way_in(each.mapping).value for each in reserved]
        mapping = await _free(conn, node, wish, start, besides)
        reserved.append(IngressReserved(allocation, slot, name, mapping, deadline=None))
    return tuple(reserved)


async def _free(
    conn: AsyncConnection, node: NodeRow, wish: WayWish, start: int, besides: Collection[str]
) -> IngressMapping:
    """The first that nobody holds, nor is to hold `besides`."""
    left = candidates(wish, node.public_addresses, start)
    while window := {way_in(each).value: each for each in islice(left, _AT_ONCE)}:
        query = sa.select(claim.c.value).where(claim.c.kind == "port", claim.c.value.in_(window))
        taken = {*await conn.scalars(query), *besides}
        if (free := next((value for value in window if value not in taken), None)) is not None:
            return window[free]
    raise none_is_free(wish, node.node_id)
