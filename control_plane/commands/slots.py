"""Commands about slots."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.decisions.slots import approve, derived_macs, network_of
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.append import Change
from events.tables import claim
from events.values import SlotId, node_of, stream_of_slot
from read_models import nodes, slots


def approve_slot(slot: SlotId, origin: Origin) -> Command:
    """Let a discovered slot be used: its MAC and IP are reserved for good (ALC-2 to ALC-4)."""

    async def command(transaction: Transaction) -> Decision:
        node = await nodes.find(transaction.conn, node_of(slot))
        row = (await slots.locked(transaction.conn, [slot])).get(slot)
        if node is None or row is None:
            raise UnknownName(Objection("unknown_slot", f"no slot {slot} was discovered"))
        taken = await _taken_macs(transaction.conn, slot, node.l2_domain)
        network = network_of(slot, node.subnet, node.l2_domain, taken)
        fact = approve(slot, row.state, row.hardware, network)
        return Decision((Change(stream_of_slot(slot), row.version, (fact,)),), origin.at(transaction.now))

    return command


async def _taken_macs(conn: AsyncConnection, slot: SlotId, l2_domain: str) -> set[str]:
    """Of the slot's MACs those that others have. Who takes one meanwhile loses us the race, and we look again."""
    values = [f"{l2_domain}/{mac}" for mac in derived_macs(slot)]
    query = sa.select(claim.c.value).where(claim.c.kind == "mac", claim.c.value.in_(values))
    return {value.rpartition("/")[2] for value in await conn.scalars(query)}
