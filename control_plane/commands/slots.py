"""Commands about slots: approve a slot for use, and force-release a slot that its node cannot prove empty."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.loaded import load
from control_plane.decisions import allocation as life
from control_plane.decisions.drift import granted_now
from control_plane.decisions.ingress import emptied
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.decisions.skus import best_fit
from control_plane.decisions.slots import (
    approve,
    derived_macs,
    force_release_slot,
    grant,
    holder_awaiting_proof,
    network_of,
    only_grants,
)
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.ledger.append import Change
from events.ledger.tables import claim
from events.values import SlotId, node_of, stream_of_slot
from read_models import catalogue, nodes, slots


def approve_slot(slot: SlotId, origin: Origin) -> Command:
    """Approve a discovered slot: its MAC and IP are reserved permanently (ALC-2 to ALC-4), and its PCI functions
    until its node describes other functions. A free slot can then be approved again and gets the new functions.
    """

    async def command(transaction: Transaction) -> Decision:
        node = await nodes.find(transaction.conn, node_of(slot))
        row = (await slots.locked(transaction.conn, [slot])).get(slot)
        if node is None or row is None:
            raise _unknown(slot)
        given = grant(slot, row.granted, row.devices)
        if only_grants(row.state, given):
            facts = (*given, *granted_now(slot, row.drift))
            return Decision((Change(stream_of_slot(slot), row.version, facts),), origin.at(transaction.now))
        taken = await _taken_macs(transaction.conn, slot, node.l2_domain)
        network = network_of(slot, node.subnet, node.l2_domain, taken)
        sku = best_fit(row.hardware, await catalogue.offered(transaction.conn, "sku"))
        fact = approve(slot, row.state, sku, network)
        return Decision(
            (Change(stream_of_slot(slot), row.version, (fact, *given)),), origin.at(transaction.now)
        )

    return command


def force_release(slot: SlotId, reason: str, origin: Origin) -> Command:
    """Force-release a slot that its node does not prove empty (ALC-11). Until the slot is claimed again, its node is
    still ordered to empty it. Raises `UnknownName`, and `Conflict` for a slot that does not await this proof.
    """

    async def command(transaction: Transaction) -> Decision:
        found = await slots.find(transaction.conn, slot)
        if found is None:
            raise _unknown(slot)
        holder = holder_awaiting_proof(slot, found.state)
        loaded = await load(transaction.conn, holder)
        # Read the row again: only now it is locked, with all rows of its allocation and in lock order.
        row = loaded.rows[slot]
        freed = force_release_slot(slot, row.state, reason, loaded.leftovers(slot))
        overridden = life.override_removal(loaded.state, slot, reason)
        gone = emptied(loaded.ingress_rules, slot)
        changes = loaded.changes((*gone, *overridden), *loaded.slot_change(slot, (freed,)))
        return Decision(changes, origin.within(loaded.history[0].cause).at(transaction.now))

    return command


def _unknown(slot: SlotId) -> UnknownName:
    return UnknownName(Objection("unknown_slot", f"there is no slot {slot}: its node has not reported it"))


async def _taken_macs(conn: AsyncConnection, slot: SlotId, l2_domain: str) -> set[str]:
    """Return the MACs derived for a slot that are already claimed. If one is claimed concurrently, the command
    reruns.
    """
    values = [f"{l2_domain}/{mac}" for mac in derived_macs(slot)]
    query = sa.select(claim.c.value).where(claim.c.kind == "mac", claim.c.value.in_(values))
    return {value.rpartition("/")[2] for value in await conn.scalars(query)}
