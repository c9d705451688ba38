"""Classification of failed bring-ups as node faults, and exclusion of a slot or a node from placement.

A bring-up has failed when a node reports that a slice could not be created as ordered, before its allocation ended. The
code of that report decides whether it counts:

    code             counted  reason
    step_refused     yes      the host refused a step: it could not create a machine, port, link, rule or file
    host_unreadable  yes      the host timed out: its hypervisor, switch or packet filter hangs
    lease_mismatch   yes      the DHCP lease is of another address or network card: another program interferes
    image_unusable   no       the image store does not have the disk image, or it differs from the catalogue
    no_lease         no       the guest did not request an address: the image may not boot
    not_reachable    no       the guest has its address but does not respond: due to its image or the caller's content
    any other        no       a newer agent reports this code, and this release cannot attribute it

A missed deadline (`deadline_missed`) is counted if the node accepted the order, sends heartbeats, has no reports to
deliver, and reported no result: its agent hangs, or crashes repeatedly on the order. An agent that works reports a
failure before that deadline. Otherwise the missed deadline is not counted: the order may not have reached the node, and
a node without heartbeats gets no placements anyway. After a missed deadline, no time is left for a placement on another
node.

A refused order (`order.refused`) is not counted: nothing was tried on the host. Its allocation waits for the deadline.

Only consecutive failures count: a slice that comes up resets the counts of its slot and its node to 0. A slot with
`LIMIT` failures is excluded. A node is excluded after `LIMIT` failures in slots that have fewer than `LIMIT` failures
each: the failures of an excluded slot do not count against its node.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from control_plane.decisions.refusals import Objection, refuse_if
from events.facts import FailedBringUp, Reason
from events.nodes import NodeBringUpFailed, NodeBringUpSucceeded, NodeExcluded, NodeFact, NodeReadmitted
from events.slots import SlotBringUpFailed, SlotBringUpSucceeded, SlotExcluded, SlotFact, SlotReadmitted
from events.values import AllocationId, NodeId, SlotId
from tasks.reasons import SliceFailureCode

LIMIT: Final = 3
"""Number of consecutive failures after which a slot or a node is excluded."""
KEPT: Final = 16
"""Maximum number of failures in a fact; the newest are kept."""
EXCLUDED: Final = "bring_ups_failed"
SUCCEEDED: Final = "bring_up_succeeded"
READMITTED: Final = "readmitted_by_admin"
_OF_NODE: Final[frozenset[SliceFailureCode]] = frozenset(
    {"step_refused", "host_unreadable", "lease_mismatch"}
)


def is_of_node(reason: Reason) -> bool:
    """Return whether a failed bring-up with this reason is a node fault."""
    return reason.code in _OF_NODE


def slot_failed(
    failure: FailedBringUp, before: Sequence[FailedBringUp], excluded: Reason | None
) -> tuple[SlotFact, ...]:
    """Return the facts that count a failed bring-up against its slot and exclude the slot at the limit. `before` are
    the consecutive failures before this one.
    """
    failures = (*before, failure)[-KEPT:]
    failed = SlotBringUpFailed(failure.slot_id, failures)
    if excluded is not None or len(failures) < LIMIT:
        return (failed,)
    return failed, SlotExcluded(failure.slot_id, _exclusion(failures), failures)


def node_failed(
    node: NodeId, failure: FailedBringUp, before: Sequence[FailedBringUp], excluded: Reason | None
) -> tuple[NodeFact, ...]:
    """Return the facts that count a failed bring-up against its node and exclude the node at the limit. `before` are
    the consecutive failures before this one.
    """
    failures = (*before, failure)[-KEPT:]
    failed = NodeBringUpFailed(node, failures)
    counted = _against_node(failures)
    if excluded is not None or len(counted) < LIMIT:
        return (failed,)
    return failed, NodeExcluded(node, _exclusion(counted), counted)


def _against_node(failures: Sequence[FailedBringUp]) -> tuple[FailedBringUp, ...]:
    in_slot = Counter(each.slot_id for each in failures)
    return tuple(each for each in failures if in_slot[each.slot_id] < LIMIT)


def _exclusion(failures: Sequence[FailedBringUp]) -> Reason:
    last = failures[-1]
    slots = ", ".join(sorted({each.slot_id for each in failures}))
    reason = (
        f"{len(failures)} consecutive bring-ups of slices failed ({slots}); the last: {last.reason.message} "
        f"[{last.reason.code}]"
    )
    return Reason(EXCLUDED, reason)


def slot_succeeded(
    slot: SlotId, allocation: AllocationId, before: Sequence[FailedBringUp], excluded: Reason | None
) -> tuple[SlotFact, ...]:
    """Return the facts that reset the failures of a slot in which a slice came up; none if no failure preceded."""
    if not before:
        return ()
    succeeded = SlotBringUpSucceeded(slot, allocation)
    if excluded is None or excluded.code != EXCLUDED:
        # A slice may come up although a PCI function has a fault: only an admin readmits such a slot.
        return (succeeded,)
    return succeeded, SlotReadmitted(slot, _came_up(slot, allocation))


def node_succeeded(
    slot: SlotId,
    allocation: AllocationId,
    node: NodeId,
    before: Sequence[FailedBringUp],
    excluded: Reason | None,
) -> tuple[NodeFact, ...]:
    """Return the facts that reset the failures of a node on which a slice came up; none if no failure preceded."""
    if not before and excluded is None:
        return ()
    succeeded = NodeBringUpSucceeded(node, slot, allocation)
    if excluded is None:
        return (succeeded,)
    return succeeded, NodeReadmitted(node, _came_up(slot, allocation))


def _came_up(slot: SlotId, allocation: AllocationId) -> Reason:
    return Reason(SUCCEEDED, f"the slice of {allocation} came up in slot {slot}")


def readmit_node(node: NodeId, excluded: Reason | None, reason: str) -> NodeReadmitted:
    """Return the fact that readmits the node to placement. Raises `Conflict` unless it is excluded."""
    refuse_if(against_readmitting(f"node {node}", excluded))
    return NodeReadmitted(node, Reason(READMITTED, reason))


def readmit_slot(slot: SlotId, excluded: Reason | None, reason: str) -> SlotReadmitted:
    """Return the fact that readmits the slot to placement. Raises `Conflict` unless it is excluded."""
    refuse_if(against_readmitting(f"slot {slot}", excluded))
    return SlotReadmitted(slot, Reason(READMITTED, reason))


def against_readmitting(what: str, excluded: Reason | None) -> list[Objection]:
    """Return the reason why a node or slot, described by `what`, cannot be readmitted; an empty list if it can."""
    if excluded is not None:
        return []
    return [Objection("not_excluded", f"{what} is not excluded from placement; there is nothing to readmit")]
