"""Commands about slots: approve, retire and reprovision a slot, and force-release one that is not proved empty."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.loaded import load
from control_plane.decisions import allocation as life
from control_plane.decisions.fleet.drift import approved_now
from control_plane.decisions.fleet.hardware import hardware_of
from control_plane.decisions.fleet.macs import derived_macs
from control_plane.decisions.fleet.slots import (
    accepts_other_hardware,
    against_approving,
    against_keeping,
    against_skus,
    approve,
    approve_hardware,
    awaits_approval,
    change_skus,
    force_release_slot,
    grant,
    holder_awaiting_proof,
    keeps_skus,
    network_of,
    reinstate,
    reprovision,
    retire,
)
from control_plane.decisions.ingress import emptied
from control_plane.decisions.placing.suitability import skus_among, suggested
from control_plane.decisions.refusals import Objection, UnknownName, refuse_if
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.ledger.append import Change
from events.ledger.tables import claim
from events.nodes import NodeNetwork
from events.slot_states import Retired
from events.slots import SlotFact
from events.values import SkuName, SlotId, node_of, stream_of_slot
from read_models import catalogue, nodes, slots
from read_models.slots import SlotRow


def approve_slot(slot: SlotId, skus: Sequence[SkuName] | None, origin: Origin) -> Command:
    """Approve a discovered slot: its MAC and IP are reserved until it is reprovisioned (ALC-2 to ALC-4), and its PCI
    functions until its node describes other functions. The slot is bound to the hardware that its node describes. If
    the hardware differs later, the slot can be approved again while it is free, and is then bound to the new hardware.
    A retired slot becomes free and keeps its addresses.

    The slot is offered under `skus`. If it is None, a new slot is offered under the SKU that uses most of it, and
    another slot keeps its SKUs, which must fit its present hardware. Raises `UnknownName` or `Conflict` with every
    objection.
    """

    async def command(transaction: Transaction) -> Decision:
        row = (await slots.locked(transaction.conn, [slot])).get(slot)
        # Read after the slot is locked: a command that changes the network of the node locks its slots first.
        node = await nodes.find(transaction.conn, node_of(slot))
        if node is None or row is None:
            raise _unknown(slot)
        given = hardware_facts(row)
        chosen = await _chosen(transaction.conn, row, given) if skus is None else skus
        if skus is not None:
            found = {
                SkuName(each.name): each for each in await catalogue.named(transaction.conn, "sku", skus)
            }
            refuse_if(against_skus(skus, found, row.hardware, row.offer))
        if isinstance(row.state, Retired):
            facts: tuple[SlotFact, ...] = (reinstate(slot, row.state, chosen), *given)
        elif awaits_approval(row.state) or (skus is None and not accepts_other_hardware(row.state, given)):
            taken = await _taken_macs(transaction.conn, slot, node.network)
            network = network_of(slot, node.subnet, node.network, taken)
            facts = (approve(slot, row.state, chosen, network), *given)
        else:
            facts = change_skus(slot, row.skus, chosen)
            if accepts_other_hardware(row.state, given):
                facts = (*facts, *given, *approved_now(slot, row.drift))
        changes = (Change(stream_of_slot(slot), row.version, facts),) if facts else ()
        return Decision(changes, origin.at(transaction.now))

    return command


def hardware_facts(row: SlotRow) -> tuple[SlotFact, ...]:
    """Return the facts by which an approval of a slot accepts the hardware that its node describes."""
    found = hardware_of(row.hardware, row.devices, row.numa_node)
    return (
        *grant(row.slot_id, row.granted, row.devices),
        *approve_hardware(row.slot_id, row.state, row.approved_hardware, row.drift, found),
    )


async def _chosen(conn: AsyncConnection, row: SlotRow, given: Sequence[SlotFact]) -> Sequence[SkuName]:
    """Return the SKUs of an approval that names none. Raises `Conflict` if those that the slot keeps do not fit, or if
    no SKU fits.
    """
    entries = await catalogue.offered(conn, "sku", also=row.skus)
    kept = row.skus if keeps_skus(row.state, given) else ()
    refuse_if(against_approving(row.slot_id, kept, entries, row.hardware, row.offer))
    if kept:
        refuse_if(against_keeping(row.slot_id, kept, entries, row.hardware, row.offer))
        return kept
    offered = skus_among(each for each in entries if each.retired is None)
    name = suggested(row.hardware, row.offer, offered)
    return [] if name is None else [name]


def retire_slot(slot: SlotId, reason: str, origin: Origin) -> Command:
    """Retire a free slot: nothing is placed in it until it is approved again. A repeated command changes nothing.
    Raises `UnknownName`, and `Conflict` for a slot that is not free.
    """

    async def command(transaction: Transaction) -> Decision:
        # The lock excludes a placement in the slot: it either is committed before, and the slot is not free, or it
        # reads the slot again after this command, and finds it retired.
        row = (await slots.locked(transaction.conn, [slot])).get(slot)
        if row is None:
            raise _unknown(slot)
        facts = retire(slot, row.state, row.granted, reason)
        changes = (Change(stream_of_slot(slot), row.version, facts),) if facts else ()
        return Decision(changes, origin.at(transaction.now))

    return command


def reprovision_slot(slot: SlotId, reason: str, origin: Origin) -> Command:
    """Give a free slot another MAC and another IP address (ALC-3). Raises `UnknownName`, and `Conflict` for a slot that
    is not free or without another MAC.
    """

    async def command(transaction: Transaction) -> Decision:
        row = (await slots.locked(transaction.conn, [slot])).get(slot)
        node = await nodes.find(transaction.conn, node_of(slot))
        if node is None or row is None:
            raise _unknown(slot)
        taken = await _taken_macs(transaction.conn, slot, node.network)
        fact = reprovision(slot, row.state, row.network, node.network, taken, reason=reason)
        return Decision((Change(stream_of_slot(slot), row.version, (fact,)),), origin.at(transaction.now))

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
        freed = force_release_slot(slot, row.state, reason, loaded.leftovers(slot), row.use)
        overridden = life.override_removal(loaded.state, slot, reason)
        gone = emptied(loaded.ingress_rules, slot)
        changes = loaded.changes((*gone, *overridden), *loaded.slot_change(slot, (freed,)))
        return Decision(changes, origin.within(loaded.history[0].cause).at(transaction.now))

    return command


def _unknown(slot: SlotId) -> UnknownName:
    return UnknownName(Objection("unknown_slot", f"there is no slot {slot}: its node has not reported it"))


async def _taken_macs(conn: AsyncConnection, slot: SlotId, settings: NodeNetwork) -> set[str]:
    """Return the candidate MACs of a slot that are already claimed in its domain. If one is claimed concurrently, the
    command reruns.
    """
    domain, pool, value = settings.l2_domain, settings.mac_pool, claim.c.value
    if pool is None:
        among: sa.ColumnElement[bool] = value.in_([f"{domain}/{mac}" for mac in derived_macs(slot)])
    else:
        among = sa.and_(value >= f"{domain}/{pool.first}", value <= f"{domain}/{pool.last}")
    found = await conn.scalars(sa.select(value).where(claim.c.kind == "mac", among))
    return {each.rpartition("/")[2] for each in found}
