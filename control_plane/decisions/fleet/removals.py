"""Reasons why a node has not proved that a slot is empty."""

from datetime import datetime
from typing import NamedTuple

from events.facts import Reason
from events.slot_states import Quarantined, SlotState
from events.values import SlotId, node_of


class EndedOrder(NamedTuple):
    """An order to remove a slice that ended without success. `state` is that of its row in `work.task`."""

    state: str
    reason: Reason | None


class MissingProof(NamedTuple):
    """What is known about a slot that awaits its node's proof. `unreachable` is whether the heartbeat of its node is
    overdue, and `last_heartbeat` the time of the last one, None if there was none. `ended` is the newest order to
    remove the slice, None unless it ended without success.
    """

    state: SlotState
    unreachable: bool
    last_heartbeat: datetime | None
    ended: EndedOrder | None

    def reason(self, slot: SlotId) -> Reason:
        """Return why the proof is missing, and what an admin can do."""
        found = self.state.reason if isinstance(self.state, Quarantined) else None
        node = node_of(slot)
        if self.unreachable:
            last = (
                "it never sent a heartbeat"
                if self.last_heartbeat is None
                else f"its last heartbeat came at {self.last_heartbeat.isoformat()}"
            )
            reported = f"; its last report: {found.message}" if found else ""
            message = (
                f"node {node} is unreachable: {last}{reported}; start its agent, or force-release the slot"
            )
            return Reason("node_unreachable", message)
        if self.ended is not None:
            details = f": {self.ended.reason.message}" if self.ended.reason else ""
            message = (
                f"the order to remove the slice ended in state {self.ended.state} on node {node}{details}; retry the task,"
                " or force-release the slot"
            )
            return Reason("removal_refused" if self.ended.state == "refused" else "removal_failed", message)
        if found is not None:
            return found
        message = f"node {node} sends heartbeats and has not proved yet that the slice is removed; wait, or inspect the slot"
        return Reason("removal_pending", message)
