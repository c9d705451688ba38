"""Commands about hosts: expect one, let it enrol again, take its description."""

import ipaddress
import json
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from itertools import count
from typing import Final

from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.decisions.slots import discover
from control_plane.decisions.subnets import free_subnet
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.append import Change
from events.envelope import Cause
from events.nodes import EnrolmentReopened, NodeExpected, NodeInspected
from events.slots import SlotHardware
from events.values import NodeId, SlotIndex, stream_of_node, stream_of_slot
from read_models import nodes, slots
from read_models.nodes import NodeRow
from tasks.reports import NodeSurveyed

L2_DOMAIN: Final = "default"
TOKEN_LIFETIME: Final = timedelta(hours=1)


def expect_node(node: NodeId, token: str, origin: Origin, among: ipaddress.IPv4Network) -> Command:
    """Admit a host by name: reserve a /24 of `among`, and open a one-time token, of which only the hash is kept."""
    attempts = count()

    async def command(transaction: Transaction) -> Decision:
        if await nodes.find(transaction.conn, node) is not None:
            raise Conflict(Objection("node_exists", f"node {node} was admitted before", "/node_id"))
        fact = NodeExpected(
            node_id=node,
            subnet=free_subnet(node, among, await nodes.subnets(transaction.conn), next(attempts)),
            l2_domain=L2_DOMAIN,
            token_sha256=sha256(token.encode()).hexdigest(),
            token_expires_at=transaction.now + TOKEN_LIFETIME,
        )
        answer = json.dumps({"subnet": fact.subnet, "token_expires_at": fact.token_expires_at.isoformat()})
        changes = (Change(stream_of_node(node), 0, (fact,)),)
        return Decision(changes, origin.at(transaction.now), answer)

    return command


def reopen_enrolment(node: NodeId, token: str, origin: Origin) -> Command:
    """Open another token for a host that lost the first, or its disk. What it has goes on working until it enrols."""

    async def command(transaction: Transaction) -> Decision:
        row = await nodes.find(transaction.conn, node, lock=True)
        if row is None:
            raise UnknownName(Objection("unknown_node", f"no node is named {node}"))
        fact = EnrolmentReopened(
            node_id=node,
            token_sha256=sha256(token.encode()).hexdigest(),
            token_expires_at=transaction.now + TOKEN_LIFETIME,
        )
        answer = json.dumps({"subnet": row.subnet, "token_expires_at": fact.token_expires_at.isoformat()})
        changes = (Change(stream_of_node(node), row.version, (fact,)),)
        return Decision(changes, origin.at(transaction.now), answer)

    return command


@dataclass(frozen=True, slots=True)
class Survey:
    """A host's description of itself, as reported, and what made it come."""

    node_id: NodeId
    body: NodeSurveyed
    cause: Cause


async def inspect_node(transaction: Transaction, survey: Survey) -> Decision:
    """Record what is new about a host and its slots; what was known already is no event."""
    node = await nodes.find(transaction.conn, survey.node_id, lock=True)
    if node is None:
        raise UnknownName(Objection("unknown_node", f"no node is named {survey.node_id}"))
    known = {slot.index: slot for slot in await slots.of_node(transaction.conn, survey.node_id)}
    found = {
        SlotIndex(slot.index): SlotHardware(slot.vcpus, slot.memory_mib, slot.network_device)
        for slot in survey.body.slots
    }
    discovered = discover(survey.node_id, {index: slot.hardware for index, slot in known.items()}, found)
    versions = {slot.slot_id: slot.version for slot in known.values()}
    changes = [
        Change(stream_of_slot(fact.slot_id), versions.get(fact.slot_id, 0), (fact,)) for fact in discovered
    ]
    if (inspected := _inspected(survey)) != _recorded(node):
        changes.insert(0, Change(stream_of_node(node.node_id), node.version, (inspected,)))
    return Decision(tuple(changes), survey.cause)


def _inspected(survey: Survey) -> NodeInspected:
    body = survey.body
    return NodeInspected(
        node_id=survey.node_id,
        hostname=body.hostname,
        agent_version=body.agent_version,
        simulated=body.simulated,
        images=body.images,
        missing=body.missing,
    )


def _recorded(node: NodeRow) -> NodeInspected | None:
    if node.hostname is None:
        return None
    return NodeInspected(
        node_id=node.node_id,
        hostname=node.hostname,
        agent_version=node.agent_version or "",
        simulated=bool(node.simulated),
        images=node.images or (),
        missing=node.missing or (),
    )
