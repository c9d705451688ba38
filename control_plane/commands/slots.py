"""Commands about slots: let one be used, and give one back that its node cannot prove empty."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.living import load
from control_plane.decisions import allocation as life
from control_plane.decisions.drift import granted_now
from control_plane.decisions.ingress import emptied
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.decisions.slots import (
    approve,
    derived_macs,
    free_unproved,
    grant,
    holder_awaiting_proof,
    network_of,
)
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.append import Change
from events.tables import claim
from events.values import SlotId, node_of, stream_of_slot
from read_models import nodes, slots


def approve_slot(slot: SlotId, origin: Origin) -> Command:
    """Let a discovered slot be used: its MAC and IP are reserved for good (ALC-2 to ALC-4), and its PCI functions until
    its node describes others. A free slot of which that is so is approved again, and has those from then on.
    """

    async def command(transaction: Transaction) -> Decision:
        node = await nodes.find(transaction.conn, node_of(slot))
        row = (await slots.locked(transaction.conn, [slot])).get(slot)
        if node is None or row is None:
            raise _unknown(slot)
        given = grant(slot, row.granted, row.devices)
        if given and row.state == "free":
            facts = (*given, *granted_now(slot, row.drift))
            return Decision((Change(stream_of_slot(slot), row.version, facts),), origin.at(transaction.now))
        taken = await _taken_macs(transaction.conn, slot, node.l2_domain)
        network = network_of(slot, node.subnet, node.l2_domain, taken)
        fact = approve(slot, row.state, row.hardware, network)
        return Decision(
            (Change(stream_of_slot(slot), row.version, (fact, *given)),), origin.at(transaction.now)
        )

    return command


def break_glass(slot: SlotId, why: str, origin: Origin) -> Command:
    """Free a slot that its node does not prove empty (ALC-11). The node is still told to empty it, until the slot is
    claimed. Raises `UnknownName`, and `Conflict` for a slot that does not wait for proof.
    """

    async def command(transaction: Transaction) -> Decision:
        found = await slots.find(transaction.conn, slot)
        if found is None:
            raise _unknown(slot)
        holder = holder_awaiting_proof(slot, found.allocation_id, found.state)
        living = await load(transaction.conn, holder)
        # Read again, for only now it is locked, with all of its allocation's in their order.
        row = living.rows[slot]
        freed = free_unproved(slot, row.allocation_id, row.state, why, living.leftovers(slot))
        waived = life.waive_removal(living.state, slot, why)
        gone = emptied(living.ways, slot)
        changes = living.changes((*gone, *waived), *living.slot_change(slot, (freed,)))
        return Decision(changes, origin.within(living.history[0].cause).at(transaction.now))

    return command


def _unknown(slot: SlotId) -> UnknownName:
    return UnknownName(Objection("unknown_slot", f"no slot {slot} was discovered"))


async def _taken_macs(conn: AsyncConnection, slot: SlotId, l2_domain: str) -> set[str]:
    """Of the slot's MACs those that others have. Who takes one meanwhile loses us the race, and we look again."""
    values = [f"{l2_domain}/{mac}" for mac in derived_macs(slot)]
    query = sa.select(claim.c.value).where(claim.c.kind == "mac", claim.c.value.in_(values))
    return {value.rpartition("/")[2] for value in await conn.scalars(query)}
