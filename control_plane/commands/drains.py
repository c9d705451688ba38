"""Commands that take a node out of service: cordon it, drain it, and open it again.

Nothing is placed on a node after the position of its cordon: the commands that cordon it first wait for placements on
it that are not committed (`placeable.close`), and each placement checks after it locked its slots that the node is not
cordoned (`placeable.hold_open`). So while a drain runs, no slot of its node becomes occupied, and the slots can be read
without locks.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, assert_never

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.loaded import load, locked_node
from control_plane.decisions import allocation as life
from control_plane.decisions.fleet import drain as deciding
from control_plane.decisions.fleet.drain import OccupiedSlot, Release, occupied
from control_plane.handle import AGAIN, Command, Decision, Transaction
from control_plane.origin import Origin
from control_plane.work.placeable import close
from control_plane.work.spooled_reports import has_recent_heartbeat
from events.envelope import Cause, Recorded
from events.facts import Fact, RemainingSlot
from events.ledger.append import Change
from events.nodes import NodeDrainEnded, NodeDrainStarted, NodeFact
from events.values import NodeId, stream_of_node
from read_models import nodes, slots
from read_models.nodes import NodeRow

_ACTOR: Final = "process:drain"


def cordon_node(node: NodeId, reason: str, origin: Origin) -> Command:
    """Close a node for new placements. A repeated command changes nothing. Raises `UnknownName`."""

    async def command(transaction: Transaction) -> Decision:
        await close(transaction.conn, node)
        row = await locked_node(transaction.conn, node)
        facts = deciding.cordon(node, row.cordoned, reason)
        return Decision(_change(row, facts), origin.at(transaction.now))

    return command


def uncordon_node(node: NodeId, reason: str, origin: Origin, *, unreachable_after: timedelta) -> Command:
    """Open a node for placements again, which cancels its drain. Raises `UnknownName`, and `Conflict` unless it is
    cordoned.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await locked_node(transaction.conn, node)
        remaining: tuple[RemainingSlot, ...] = ()
        if running := row.running_drain:
            found = await _occupied(transaction.conn, node)
            reachable = await has_recent_heartbeat(transaction.conn, node, unreachable_after)
            remaining = deciding.remaining_slots(running, found, reachable=reachable)
        facts = deciding.uncordon(node, row.cordoned, running, reason, remaining)
        return Decision(_change(row, facts), origin.at(transaction.now))

    return command


def drain_node(node: NodeId, reason: str, release_after: timedelta | None, origin: Origin) -> Command:
    """Cordon a node and begin its drain, or change the release time of its running drain. Raises `UnknownName`."""

    async def command(transaction: Transaction) -> Decision:
        await close(transaction.conn, node)
        row = await locked_node(transaction.conn, node)
        facts = deciding.start(
            node,
            row.cordoned,
            row.running_drain,
            reason,
            now=transaction.now,
            release_after=release_after,
        )
        return Decision(_change(row, facts), origin.at(transaction.now))

    return command


def advance_drain(
    source: Recorded[Fact], drain: NodeDrainStarted, *, unreachable_after: timedelta
) -> Command:
    """Release one allocation of a node after the release time of its drain, or end the drain. The answer is
    `AGAIN` after a release, because another allocation may have to be released too.

    `source` is the recorded fact of the drain's start. Nothing changes if this drain does not run any more.
    """
    node = drain.node_id

    async def command(transaction: Transaction) -> Decision:
        conn, now = transaction.conn, transaction.now
        cause = source.leads_to(actor=_ACTOR, reason="drain", observed_at=now)
        row = await nodes.find(conn, node)
        if row is None or row.running_drain != drain:
            return Decision((), cause)
        reachable = await has_recent_heartbeat(conn, node, unreachable_after)
        match deciding.next_step(drain, await _occupied(conn, node), now, reachable=reachable):
            case None:
                return Decision((), cause)
            case Release() as step:
                return await _release(conn, drain, step, cause)
            case NodeDrainEnded() as ended:
                # Locked only now, because rows of slots are locked before those of nodes.
                row = await locked_node(conn, node)
                ends = row.running_drain == drain
                return Decision(_change(row, (ended,)) if ends else (), cause)
            case unexpected:
                assert_never(unexpected)

    return command


async def _release(conn: AsyncConnection, drain: NodeDrainStarted, step: Release, cause: Cause) -> Decision:
    loaded = await load(conn, step.allocation_id)
    # Locked after the slots, and until the end of the transaction: an uncordon of the node either is committed before,
    # which cancelled the drain, or waits for the release.
    row = await nodes.held(conn, drain.node_id)
    if row.running_drain != drain or life.against_releasing(loaded.state):
        # The allocation cannot be released if it failed after the slots were read, which empties them as well.
        return Decision((), cause)
    released = loaded.changes(life.release(loaded.state, step.reason))
    of = loaded.history[0].cause
    cause = msgspec.structs.replace(cause, correlation_id=of.correlation_id, project=of.project)
    return Decision(released, cause, AGAIN)


async def _occupied(conn: AsyncConnection, node: NodeId) -> list[OccupiedSlot]:
    found = (occupied(each.slot_id, each.state) for each in await slots.of_node(conn, node))
    return [each for each in found if each is not None]


def _change(row: NodeRow, facts: Sequence[NodeFact]) -> tuple[Change, ...]:
    return (Change(stream_of_node(row.node_id), row.version, tuple(facts)),) if facts else ()
