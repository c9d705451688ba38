"""Commands about ways in from outside: say what addresses a node has, ask for a way in, and close one."""

from ipaddress import IPv4Network

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.free_ways import reserve
from control_plane.commands.living import Living, check_spoken, load, locked_node
from control_plane.decisions import ingress
from control_plane.decisions.public_addresses import WayWish, change, check_apart
from control_plane.decisions.refusals import Conflict, Malformed, Objection
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.append import Change
from events.claims import ways_by
from events.facts import Reason
from events.nodes import PublicAddress
from events.tables import claim
from events.values import AllocationId, IngressId, Ipv4Address, NodeId, SlotId, node_of, stream_of_node
from read_models import nodes
from tasks.catalogue import INGRESS


def change_addresses(
    node: NodeId, wanted: tuple[PublicAddress, ...], origin: Origin, slice_networks: IPv4Network
) -> Command:
    """Say which public addresses a node has.

    Raises `UnknownName`, and `Conflict` for one that is in use or one of the slices' own.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await locked_node(transaction.conn, node)
        check_apart(wanted, slice_networks)
        used = await _used(transaction.conn, [each.address for each in row.public_addresses])
        facts = change(node, row.public_addresses, wanted, used)
        own = (Change(stream_of_node(node), row.version, facts),) if facts else ()
        return Decision(own, origin.at(transaction.now))

    return command


async def _used(conn: AsyncConnection, addresses: list[Ipv4Address]) -> set[Ipv4Address]:
    """Those by which somebody comes in, or may still."""
    address = sa.func.unnest(sa.cast(addresses, ARRAY(sa.Text))).column_valued("address")
    held = (
        sa.select(sa.true()).where(claim.c.kind == "port", claim.c.value.between(*span)).limit(1)
        for span in ways_by(address)
    )
    query = sa.select(address).where(sa.func.coalesce(*(each.scalar_subquery() for each in held), sa.false()))
    return {Ipv4Address(each) for each in await conn.scalars(query)}


def open_way(allocation: AllocationId, name: IngressId, wish: WayWish, origin: Origin) -> Command:
    """Reserve a way in to a slice, under this name. Raises `UnknownName`, `Malformed`, `Conflict`."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        slot = _slot_of(living, wish)
        if living.state.request.network_mode != "public-nat":
            why = f"allocation {allocation} is {living.state.request.network_mode}: public-nat has ways in"
            raise Conflict(Objection("ingress_needs_public_nat", why))
        ingress.check_room(living.state, living.ways, slot)
        await check_spoken(transaction.conn, [node_of(slot)], INGRESS)
        node = await nodes.held(transaction.conn, node_of(slot))
        [reserved] = await reserve(transaction.conn, node, [(name, slot, wish)], allocation)
        until = ingress.in_place_by(living.state, transaction.now)
        facts = (msgspec.structs.replace(reserved, deadline=until),)
        cause = origin.within(living.history[0].cause).at(transaction.now)
        return Decision(living.changes(facts), cause, answer=name)

    return command


def _slot_of(living: Living, wish: WayWish) -> SlotId:
    slots = living.state.slots
    if wish.slot >= len(slots):
        why = f"the allocation has {len(slots)} slots, and they are counted from 0"
        raise Malformed(Objection("no_such_slot", why, "/slot"))
    return slots[wish.slot].slot_id


def close_way(allocation: AllocationId, name: IngressId, origin: Origin, reason: Reason) -> Command:
    """Withdraw a way in. Asked again, nothing new happens. Raises `UnknownName`."""

    async def command(transaction: Transaction) -> Decision:
        living = await load(transaction.conn, allocation)
        facts = ingress.withdraw(living.state, living.ways, name, reason)
        return Decision(living.changes(facts), origin.within(living.history[0].cause).at(transaction.now))

    return command
