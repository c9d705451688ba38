"""Commands about ingress rules: set the public addresses of a node, reserve an ingress rule, and withdraw it."""

from ipaddress import IPv4Network

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.free_ingress import reserve
from control_plane.commands.loaded import LoadedAllocation, check_supported, load, locked_node
from control_plane.decisions import ingress
from control_plane.decisions.public_addresses import IngressRequest, change, refuse_slice_addresses
from control_plane.decisions.refusals import Conflict, Malformed, Objection
from control_plane.decisions.requests import permits_ingress
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.claims import address_claim_bounds
from events.facts import Reason
from events.ledger.append import Change
from events.ledger.tables import claim
from events.nodes import PublicAddress
from events.values import AllocationId, IngressId, Ipv4Address, NodeId, SlotId, node_of, stream_of_node
from read_models import nodes
from tasks.catalogue import INGRESS


def change_addresses(
    node: NodeId, wanted: tuple[PublicAddress, ...], origin: Origin, slice_networks: IPv4Network
) -> Command:
    """Set the public addresses of a node.

    Raises `UnknownName`, and `Conflict` for an address that is in use or in the network of slices.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await locked_node(transaction.conn, node)
        refuse_slice_addresses(wanted, slice_networks)
        used = await _used(transaction.conn, [each.address for each in row.public_addresses])
        facts = change(node, row.public_addresses, wanted, used)
        own = (Change(stream_of_node(node), row.version, facts),) if facts else ()
        return Decision(own, origin.at(transaction.now))

    return command


async def _used(conn: AsyncConnection, addresses: list[Ipv4Address]) -> set[Ipv4Address]:
    """Return which of these public addresses have claimed ports."""
    address = sa.func.unnest(sa.cast(addresses, ARRAY(sa.Text))).column_valued("address")
    held = (
        sa.select(sa.true()).where(claim.c.kind == "port", claim.c.value.between(*span)).limit(1)
        for span in address_claim_bounds(address)
    )
    query = sa.select(address).where(sa.func.coalesce(*(each.scalar_subquery() for each in held), sa.false()))
    return {Ipv4Address(each) for each in await conn.scalars(query)}


def open_ingress(
    allocation: AllocationId, name: IngressId, request: IngressRequest, origin: Origin
) -> Command:
    """Reserve an ingress rule for a slice, under this id. Raises `UnknownName`, `Malformed`, `Conflict`."""

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        slot = _slot_of(loaded, request)
        if not permits_ingress(mode := loaded.state.request.network_mode):
            message = f"allocation {allocation} has network mode {mode}; ingress rules need public-nat"
            raise Conflict(Objection("ingress_needs_public_nat", message))
        ingress.check_ingress_limit(loaded.state, loaded.ingress_rules, slot)
        await check_supported(transaction.conn, [node_of(slot)], INGRESS)
        node = await nodes.held(transaction.conn, node_of(slot))
        [reserved] = await reserve(transaction.conn, node, [(name, slot, request)], allocation)
        until = ingress.ingress_deadline(loaded.state, transaction.now)
        facts = (msgspec.structs.replace(reserved, deadline=until),)
        cause = origin.within(loaded.history[0].cause).at(transaction.now)
        return Decision(loaded.changes(facts), cause, answer=name)

    return command


def _slot_of(loaded: LoadedAllocation, request: IngressRequest) -> SlotId:
    slots = loaded.state.slots
    if request.slot >= len(slots):
        message = f"no slot {request.slot}: the allocation has {len(slots)} slots, counted from 0"
        raise Malformed(Objection("unknown_slot_index", message, "/slot"))
    return slots[request.slot].slot_id


def close_ingress(allocation: AllocationId, name: IngressId, origin: Origin, reason: Reason) -> Command:
    """Withdraw an ingress rule. A repeated command changes nothing. Raises `UnknownName`."""

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        facts = ingress.withdraw(loaded.state, loaded.ingress_rules, name, reason)
        return Decision(loaded.changes(facts), origin.within(loaded.history[0].cause).at(transaction.now))

    return command
