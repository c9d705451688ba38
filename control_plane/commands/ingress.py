"""Commands about ingress rules: set the public addresses of a node, reserve an ingress rule, and withdraw it.

The claims in the ledger decide which public addresses and ports are free. If another command claims the chosen address
or port at the same time, the command runs again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from ipaddress import IPv4Network
from itertools import islice
from typing import Final
from zlib import crc32

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.admission.quotas import hold_project_of, ingress_use
from control_plane.commands.loaded import LoadedAllocation, check_supported, load, locked_node
from control_plane.decisions import ingress
from control_plane.decisions.public_addresses import (
    AddressRequest,
    IngressRequest,
    PortRequest,
    candidates,
    change,
    no_free_address_on_node,
    refuse_slice_addresses,
)
from control_plane.decisions.quotas import over_quota
from control_plane.decisions.refusals import Malformed, Objection, refuse_if
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.allocations import AllocationFact
from events.claims import address_claim_bounds, ingress_claim, port_claim_bounds, port_claim_value
from events.facts import Reason
from events.ingress import IngressReserved, IngressRule
from events.ledger.append import Change
from events.ledger.tables import claim
from events.nodes import PublicAddress
from events.values import (
    AllocationId,
    IngressId,
    Ipv4Address,
    NodeId,
    ProjectId,
    SlotId,
    node_of,
    stream_of_node,
)
from read_models import nodes
from read_models.nodes import NodeRow
from tasks.catalogue import INGRESS

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
"""SQL table expression with the public addresses of a node, one per row."""


def change_addresses(
    node: NodeId, wanted: tuple[PublicAddress, ...], origin: Origin, slice_networks: IPv4Network
) -> Command:
    """Set the public addresses of a node.

    Raises `UnknownName`, and `Conflict` for an address that ingress rules use or that is in the slice networks.
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
    """Return the public addresses in `addresses` that ingress rules have claimed, as a whole or by port."""
    address = sa.func.unnest(sa.cast(addresses, ARRAY(sa.Text))).column_valued("address")
    held = (
        sa.select(sa.true()).where(claim.c.kind == "port", claim.c.value.between(*span)).limit(1)
        for span in address_claim_bounds(address)
    )
    query = sa.select(address).where(sa.func.coalesce(*(each.scalar_subquery() for each in held), sa.false()))
    return {Ipv4Address(each) for each in await conn.scalars(query)}


def open_ingress(
    allocation: AllocationId,
    name: IngressId,
    request: IngressRequest,
    origin: Origin,
    render: Callable[[tuple[AllocationFact, ...]], str],
) -> Command:
    """Reserve an ingress rule with the given id for a slice; `render` builds the JSON answer from all facts of the
    allocation. Raises `UnknownName`, `Malformed`, `Conflict`.
    """

    async def command(transaction: Transaction) -> Decision:
        # The row of the project is locked before those of the slots. The project cannot be archived while it has an
        # allocation that accepts ingress rules.
        quotas, requested = await hold_project_of(transaction.conn, allocation), ingress_use([request])
        loaded = await load(transaction.conn, allocation)
        slot = _slot_of(loaded, request)
        refuse_if(ingress.against_opening(loaded.state, loaded.ingress_rules, slot))
        if exceeded := quotas.exceeded(requested):
            raise over_quota(exceeded)
        await check_supported(transaction.conn, [node_of(slot)], INGRESS)
        node = await nodes.held(transaction.conn, node_of(slot))
        project = loaded.state.request.project
        [reserved] = await reserve(transaction.conn, node, [(name, slot, request)], allocation, project)
        until = ingress.ingress_deadline(loaded.state, transaction.now)
        facts = (msgspec.structs.replace(reserved, deadline=until),)
        cause = origin.within(loaded.history[0].cause).at(transaction.now)
        answer = render((*(each.fact for each in loaded.history), *facts))
        return Decision(loaded.changes(facts), cause, answer, quotas.last_check(requested))

    return command


def _slot_of(loaded: LoadedAllocation, request: IngressRequest) -> SlotId:
    slots = loaded.state.slots
    if request.slot >= len(slots):
        message = f"the allocation has no slot {request.slot}; it has {len(slots)} slots, counted from 0"
        raise Malformed(Objection("unknown_slot_index", message, "/slot"))
    return slots[request.slot].slot_id


def close_ingress(allocation: AllocationId, name: IngressId, origin: Origin, reason: Reason) -> Command:
    """Withdraw an ingress rule. A repeated command changes nothing. Raises `UnknownName`."""

    async def command(transaction: Transaction) -> Decision:
        loaded = await load(transaction.conn, allocation)
        facts = ingress.withdraw(loaded.state, loaded.ingress_rules, name, reason)
        return Decision(loaded.changes(facts), origin.within(loaded.history[0].cause).at(transaction.now))

    return command


def has_free_ingress(requests: Iterable[IngressRequest]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield SQL conditions for nodes with enough unclaimed public addresses and ports for all ingress requests.

    On a node that fails one of the conditions, `reserve` would raise `Conflict`.
    """
    wanted = list(requests)
    if whole := sum(isinstance(request.to, AddressRequest) for request in wanted):
        yield _of_addresses(sa.func.count(), _GIVEN.c.use == "whole", _unclaimed(_GIVEN.c.address)) >= whole
    ports = [request.to for request in wanted if isinstance(request.to, PortRequest)]
    for protocol, count in Counter(to.protocol for to in ports).items():
        yield _of_addresses(sa.func.sum(_unclaimed_ports(protocol)), _GIVEN.c.use == "ports") >= count
    named = Counter((to.protocol, to.public_port) for to in ports if to.public_port is not None)
    for (protocol, port), count in named.items():
        has = sa.literal(port).between(_GIVEN.c.first_port, _GIVEN.c.last_port)
        unclaimed = _unclaimed(port_claim_value(protocol, _GIVEN.c.address, port))
        yield _of_addresses(sa.func.count(), _GIVEN.c.use == "ports", has, unclaimed) >= count


def _of_addresses(
    expression: sa.ColumnElement[int], *conditions: sa.ColumnElement[bool]
) -> sa.ScalarSelect[int]:
    """Return a subquery for the aggregate `expression` over those public addresses of a node that meet all
    `conditions`.
    """
    return sa.select(expression).select_from(_GIVEN).where(*conditions).scalar_subquery()


def _unclaimed(value: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    # A scalar subquery: the planner would turn an `exists` into a join over all claims.
    held = sa.select(sa.true()).where(claim.c.kind == "port", claim.c.value == value)
    return held.scalar_subquery().is_(None)


def _unclaimed_ports(protocol: str) -> sa.ColumnElement[int]:
    """Return an SQL expression for the number of unclaimed ports of a public address."""
    first, last = port_claim_bounds(protocol, _GIVEN.c.address)
    held = sa.select(sa.func.count()).where(claim.c.kind == "port", claim.c.value.between(first, last))
    return _GIVEN.c.last_port - _GIVEN.c.first_port + 1 - held.scalar_subquery()


async def reserve(
    conn: AsyncConnection,
    node: NodeRow,
    requests: Sequence[tuple[IngressId, SlotId, IngressRequest]],
    allocation: AllocationId,
    project: ProjectId,
) -> tuple[IngressReserved, ...]:
    """Choose a free public address or port of the node for each ingress request, which counts for the quota of
    `project`. Raises `Conflict` if there is none.
    """
    reserved: list[IngressReserved] = []
    for name, slot, request in requests:
        # Start at a different place for each, so that concurrent requests do not all choose the same one.
        start, chosen = crc32(name.encode()), [ingress_claim(each.rule).value for each in reserved]
        mapping = await _free(conn, node, request, start, chosen)
        reserved.append(IngressReserved(allocation, slot, name, mapping, deadline=None, project=project))
    return tuple(reserved)


async def _free(
    conn: AsyncConnection, node: NodeRow, request: IngressRequest, start: int, chosen: Collection[str]
) -> IngressRule:
    """Return the first ingress rule that satisfies the request and has a public address and port that are neither
    claimed nor in `chosen`. Raises `Conflict` if the node has none.
    """
    left = candidates(request, node.public_addresses, start)
    while window := {ingress_claim(each).value: each for each in islice(left, _AT_ONCE)}:
        query = sa.select(claim.c.value).where(claim.c.kind == "port", claim.c.value.in_(window))
        taken = {*await conn.scalars(query), *chosen}
        if (free := next((value for value in window if value not in taken), None)) is not None:
            return window[free]
    raise no_free_address_on_node(request, node.node_id)
