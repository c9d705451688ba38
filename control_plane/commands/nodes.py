"""Commands about nodes: register a node, remove its registration, reopen its enrolment, record its description and
repairs.
"""

import ipaddress
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import count
from typing import Final

from control_plane.commands.loaded import locked_node
from control_plane.decisions.fleet import drift
from control_plane.decisions.fleet.hardware import changed, hardware_of
from control_plane.decisions.fleet.registration import (
    Registration,
    check_repeatable,
    configure,
    free_subnet,
    removal,
)
from control_plane.decisions.fleet.slots import (
    NOTHING_DESCRIBED,
    Described,
    awaits_approval,
    described,
    discover,
)
from control_plane.decisions.refusals import Objection, UnknownName
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.drift import OpenDrift
from events.envelope import Cause
from events.ledger.append import Change
from events.nodes import (
    DEFAULT_L2_DOMAIN,
    EnrolmentReopened,
    NodeInspected,
    NodeNetwork,
    NodeRegistered,
    NodeRepaired,
    UnsupportedMode,
)
from events.slots import DeviceEvidence, FabricMetadata, SlotDevice, SlotFact, SlotHardware, SlotRepaired
from events.values import (
    NetworkMode,
    NodeId,
    SlotId,
    SlotIndex,
    index_of,
    slot_of,
    stream_of_node,
    stream_of_slot,
)
from read_models import nodes, slots
from read_models.nodes import REMOVED, NodeRow
from read_models.slots import SlotRow
from tasks.devices import FoundDevice
from tasks.drift import LocatedEvidence
from tasks.reports import DriftRepaired, FoundSlot, NodeSurveyed

TOKEN_LIFETIME: Final = timedelta(hours=1)


def register_node(node: NodeId, token: str, origin: Origin, among: ipaddress.IPv4Network) -> Command:
    """Register a node by name: reserve a /24 subnet and issue a one-time token, of which only the hash is stored.

    The subnet is taken from the network `among`. If the node is already registered, it keeps its subnet and the new
    token replaces the earlier one. Raises `Conflict` for a node that has enrolled.
    """
    attempts = count()

    async def command(transaction: Transaction) -> Decision:
        row = await nodes.last_registration(transaction.conn, node, lock=True)
        if row is not None and row.state != REMOVED:
            check_repeatable(registration_of(row))
            return _opened(row, token, origin, transaction.now)
        fact = NodeRegistered(
            node_id=node,
            subnet=free_subnet(node, among, await nodes.subnets(transaction.conn), next(attempts)),
            l2_domain=DEFAULT_L2_DOMAIN,
            token_sha256=sha256(token.encode()).hexdigest(),
            token_expires_at=transaction.now + TOKEN_LIFETIME,
        )
        answer = json.dumps({"subnet": fact.subnet, "token_expires_at": fact.token_expires_at.isoformat()})
        changes = (Change(stream_of_node(node), row.version if row else 0, (fact,)),)
        return Decision(changes, origin.at(transaction.now), answer)

    return command


def reopen_enrolment(node: NodeId, token: str, origin: Origin) -> Command:
    """Issue another token for a node that lost its token or its disk. The present access of the node ends when the
    node enrols again.
    """

    async def command(transaction: Transaction) -> Decision:
        return _opened(await locked_node(transaction.conn, node), token, origin, transaction.now)

    return command


def _opened(row: NodeRow, token: str, origin: Origin, now: datetime) -> Decision:
    fact = EnrolmentReopened(
        node_id=row.node_id,
        token_sha256=sha256(token.encode()).hexdigest(),
        token_expires_at=now + TOKEN_LIFETIME,
    )
    answer = json.dumps({"subnet": row.subnet, "token_expires_at": fact.token_expires_at.isoformat()})
    changes = (Change(stream_of_node(row.node_id), row.version, (fact,)),)
    return Decision(changes, origin.at(now), answer)


def remove_node(node: NodeId, origin: Origin) -> Command:
    """Remove the registration of a node that never enrolled, with its claims on a subnet and on public addresses. A
    repeated removal changes nothing. Raises `UnknownName` and `Conflict`.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await nodes.last_registration(transaction.conn, node, lock=True)
        if row is None:
            raise UnknownName(Objection("unknown_node", f"no node is named {node}"))
        facts = () if row.state == REMOVED else removal(registration_of(row))
        changes = (Change(stream_of_node(node), row.version, facts),) if facts else ()
        return Decision(changes, origin.at(transaction.now))

    return command


def configure_node(node: NodeId, wanted: NodeNetwork, origin: Origin) -> Command:
    """Set the network of a node. Raises `UnknownName`, and `Conflict` if the bridge or the layer-2 domain would change
    while slots have addresses.
    """

    async def command(transaction: Transaction) -> Decision:
        # Locked before the node: an approval that is not committed holds the row of its slot.
        found = await slots.of_node(transaction.conn, node, lock=True)
        row = await locked_node(transaction.conn, node)
        approved = [each.slot_id for each in found if each.network is not None]
        facts = configure(node, row.network, wanted, approved)
        changes = (Change(stream_of_node(node), row.version, facts),) if facts else ()
        return Decision(changes, origin.at(transaction.now))

    return command


def registration_of(row: NodeRow) -> Registration:
    """Return the registration of a node, built from the node's row in the read model."""
    addresses = tuple(each.address for each in row.public_addresses)
    # A revocation and a reopened enrolment delete the key but keep the agent version of the enrolment.
    return Registration(row.node_id, row.subnet, addresses, has_enrolled=row.agent_version is not None)


@dataclass(frozen=True, slots=True)
class Survey:
    """A node's reported description of its host and slots, and the cause of the facts that are recorded from it."""

    node_id: NodeId
    body: NodeSurveyed
    cause: Cause


async def inspect_node(transaction: Transaction, survey: Survey) -> Decision:
    """Record the differences between a node's survey and the recorded state of the node and its slots."""
    found = await slots.of_node(transaction.conn, survey.node_id, lock=True)
    node, known = await locked_node(transaction.conn, survey.node_id), {slot.index: slot for slot in found}
    described = () if (inspected := _inspected(survey)) == _recorded(node) else (inspected,)
    open_ = drift.open_drift(_drift_in(survey, None), None)
    facts = (*described, *drift.of_node(node.node_id, node.drift, open_))
    own = (Change(stream_of_node(node.node_id), node.version, facts),) if facts else ()
    return Decision((*own, *_slot_changes(survey, known)), survey.cause)


def _slot_changes(survey: Survey, known: dict[SlotIndex, SlotRow]) -> Iterator[Change]:
    reported = {SlotIndex(slot.index): slot for slot in survey.body.slots}
    found = {
        index: SlotHardware(slot.vcpus, slot.memory_mib, slot.network_device)
        for index, slot in reported.items()
    }
    hardware = {index: slot.hardware for index, slot in known.items()}
    discovered = {index_of(fact.slot_id): fact for fact in discover(survey.node_id, hardware, found)}
    for index in sorted(found.keys() | known.keys()):
        slot, row = slot_of(survey.node_id, index), known.get(index)
        news: tuple[SlotFact, ...] = (discovered[index],) if index in discovered else ()
        if index in reported:
            before = (row.devices, row.numa_node) if row else NOTHING_DESCRIBED
            news += described(slot, before, _described(reported[index]))
            open_ = (
                *drift.open_drift(_drift_in(survey, index), index),
                *_hardware_drift(slot, row, found[index], reported[index], survey.cause.observed_at),
            )
        else:
            open_ = (drift.vanished(slot, survey.cause.observed_at),)
        facts = (*news, *drift.of_slot(slot, row.drift if row else (), open_))
        if facts:
            yield Change(stream_of_slot(slot), row.version if row else 0, facts)


def _described(slot: FoundSlot) -> Described:
    return tuple(map(slot_device, slot.devices)), slot.numa_node


def slot_device(found: FoundDevice) -> SlotDevice:
    """Return a PCI function that a node reports in the form that facts store."""
    fabric = found.fabric_metadata
    facts = found.model_dump() | {
        "fabric_metadata": None if fabric is None else FabricMetadata(**dict(fabric)),
        "evidence": tuple(DeviceEvidence(each.path, each.value) for each in found.evidence),
    }
    return SlotDevice(**facts)


def _hardware_drift(
    slot: SlotId, row: SlotRow | None, hardware: SlotHardware, reported: FoundSlot, since: datetime
) -> tuple[OpenDrift, ...]:
    if row is None or awaits_approval(row.state):
        return ()
    devices, numa_node = _described(reported)
    return (
        *drift.ungranted(slot, row.granted, devices, since),
        *changed(row.approved_hardware, hardware_of(hardware, devices, numa_node), devices, row.drift, since),
    )


def _drift_in(survey: Survey, slot: SlotIndex | None) -> Iterator[LocatedEvidence]:
    return (each for each in survey.body.drift if each.slot == slot)


async def take_repair(
    transaction: Transaction, node_id: NodeId, body: DriftRepaired, cause: Cause
) -> Decision:
    """Record drift that a node repaired by itself. Nothing is recorded for a slot that the node never described."""
    repaired = drift.repaired_drift(body.drift, None if body.slot is None else SlotIndex(body.slot))
    if not repaired:
        return Decision((), cause)
    if body.slot is None:
        node = await locked_node(transaction.conn, node_id)
        own = Change(stream_of_node(node_id), node.version, (NodeRepaired(node_id, repaired),))
        return Decision((own,), cause)
    slot = slot_of(node_id, SlotIndex(body.slot))
    rows = await slots.locked(transaction.conn, [slot])
    changes = (
        Change(stream_of_slot(slot), row.version, (SlotRepaired(slot, repaired),)) for row in rows.values()
    )
    return Decision(tuple(changes), cause)


def _inspected(survey: Survey) -> NodeInspected:
    body = survey.body
    return NodeInspected(
        node_id=survey.node_id,
        hostname=body.hostname,
        agent_version=body.agent_version,
        simulated=body.simulated,
        images=body.images,
        missing=body.missing,
        unsupported_modes=_modes({each.mode: each.reason for each in body.unsupported_modes}),
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
        unsupported_modes=_modes(node.unsupported_modes),
    )


def _modes(reasons: Mapping[NetworkMode, str]) -> tuple[UnsupportedMode, ...]:
    return tuple(UnsupportedMode(*each) for each in sorted(reasons.items()))
