"""Free public addresses and ports, by the ledger's claims. Who takes one meanwhile loses us the race: we look again."""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final
from zlib import crc32

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.public_addresses import WayWish, candidates, none_is_free
from events.claims import way_in
from events.ingress import IngressMapping, IngressReserved
from events.tables import claim
from events.values import AllocationId, IngressId, SlotId
from read_models.nodes import NodeRow

_AT_ONCE: Final = 64


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
