"""The only table that maps fact classes to their stored names.

A stored name is permanent; a class name may change. Names have the form `<object>.<past participle>`, and the schema
version numbers the shapes of one name. Payloads are canonical JSON: sorted keys, no white space, UTF-8. The types of a
stream are listed in the order of its life cycle, which is also the order in docs/events.md.

A stored event stays readable permanently, so no line is ever removed. When a type is no longer written, its class stays
for reading; when its shape changes, its version rises and `events.upcasts` gets a function.
"""

from typing import Final

from events import (
    access,
    allocations,
    ingress,
    nodes,
    orders,
    principals,
    projections,
    projects,
    service_accounts,
    sessions,
    slots,
    tasks,
)
from events.shapes import BrokenCatalog, NotYetWritable, Shape, Shapes, UnknownFact, UnreadableFact
from events.upcasts import UPCASTS

__all__ = [
    "CATALOG",
    "READERS",
    "BrokenCatalog",
    "NotYetWritable",
    "Shape",
    "UnknownFact",
    "UnreadableFact",
    "decode",
    "encode",
    "name_of",
]

CATALOG: Final[dict[str, Shape]] = {
    "node.registered": Shape(1, nodes.NodeRegistered),
    "node.enrolment_reopened": Shape(1, nodes.EnrolmentReopened),
    "node.removed": Shape(1, nodes.NodeRemoved),
    "node.enrolled": Shape(1, nodes.NodeEnrolled),
    "node.agent_superseded": Shape(1, nodes.AgentSuperseded),
    "node.revoked": Shape(1, nodes.NodeRevoked),
    "node.inspected": Shape(1, nodes.NodeInspected),
    "node.addresses_changed": Shape(1, nodes.NodeAddressesChanged),
    "node.degraded": Shape(1, nodes.NodeDegraded),
    "node.recovered": Shape(1, nodes.NodeRecovered),
    "node.repaired": Shape(1, nodes.NodeRepaired),
    "node.bring_up_failed": Shape(1, nodes.NodeBringUpFailed),
    "node.bring_up_succeeded": Shape(1, nodes.NodeBringUpSucceeded),
    "node.excluded": Shape(1, nodes.NodeExcluded),
    "node.readmitted": Shape(1, nodes.NodeReadmitted),
    "node.reports_throttled": Shape(1, nodes.NodeReportsThrottled),
    "node.reports_resumed": Shape(1, nodes.NodeReportsResumed),
    "slot.discovered": Shape(1, slots.SlotDiscovered),
    "slot.approved": Shape(1, slots.SlotApproved),
    "slot.devices_described": Shape(2, slots.SlotDevicesDescribed),
    "slot.devices_granted": Shape(1, slots.SlotDevicesGranted),
    "slot.claimed": Shape(1, slots.SlotClaimed),
    "slot.releasing": Shape(1, slots.SlotReleasing),
    "slot.quarantined": Shape(1, slots.SlotQuarantined),
    "slot.released": Shape(1, slots.SlotReleased),
    "slot.force_released": Shape(1, slots.SlotForceReleased),
    "slot.degraded": Shape(1, slots.SlotDegraded),
    "slot.recovered": Shape(1, slots.SlotRecovered),
    "slot.repaired": Shape(1, slots.SlotRepaired),
    "slot.bring_up_failed": Shape(1, slots.SlotBringUpFailed),
    "slot.bring_up_succeeded": Shape(1, slots.SlotBringUpSucceeded),
    "slot.excluded": Shape(1, slots.SlotExcluded),
    "slot.readmitted": Shape(1, slots.SlotReadmitted),
    "allocation.requested": Shape(2, allocations.AllocationRequested),
    "allocation.readiness_check_set": Shape(1, allocations.ReadinessCheckSet),
    "allocation.placed": Shape(1, allocations.AllocationPlaced),
    "allocation.replaced": Shape(1, allocations.AllocationReplaced),
    "allocation.slice_starting": Shape(1, allocations.SliceStarting),
    "allocation.slice_address_observed": Shape(1, allocations.SliceAddressObserved),
    "allocation.slice_ready": Shape(1, allocations.SliceReady),
    "allocation.activated": Shape(1, allocations.AllocationActivated),
    "allocation.lease_granted": Shape(1, allocations.LeaseGranted),
    "allocation.slice_interrupted": Shape(1, allocations.SliceInterrupted),
    "allocation.stopping": Shape(1, allocations.AllocationStopping),
    "allocation.slice_stopped": Shape(1, allocations.SliceStopped),
    "allocation.stopped": Shape(1, allocations.AllocationStopped),
    "allocation.starting": Shape(1, allocations.AllocationStarting),
    "allocation.lease_expired": Shape(1, allocations.LeaseExpired),
    "allocation.releasing": Shape(1, allocations.AllocationReleasing),
    "allocation.failed": Shape(1, allocations.AllocationFailed),
    "allocation.lease_ended": Shape(1, allocations.LeaseEnded),
    "allocation.slice_removal_incomplete": Shape(1, allocations.SliceRemovalIncomplete),
    "allocation.slice_removal_retried": Shape(1, allocations.SliceRemovalRetried),
    "allocation.slice_removed": Shape(1, allocations.SliceRemoved),
    "allocation.slice_removal_overridden": Shape(1, allocations.SliceRemovalOverridden),
    "allocation.released": Shape(1, allocations.AllocationReleased),
    "ingress.reserved": Shape(1, ingress.IngressReserved),
    "ingress.published": Shape(1, ingress.IngressPublished),
    "ingress.lost": Shape(1, ingress.IngressLost),
    "ingress.withdrawn": Shape(1, ingress.IngressWithdrawn),
    "ingress.removed": Shape(1, ingress.IngressRemoved),
    "task.requested": Shape(1, tasks.TaskRequested),
    "task.failed": Shape(1, tasks.TaskFailed),
    "task.succeeded": Shape(1, tasks.TaskSucceeded),
    "task.cancel_requested": Shape(1, tasks.TaskCancelRequested),
    "task.cancelled": Shape(1, tasks.TaskCancelled),
    "task.retried": Shape(1, tasks.TaskRetried),
    "project.created": Shape(1, projects.ProjectCreated),
    "project.described": Shape(1, projects.ProjectDescribed),
    "project.archived": Shape(1, projects.ProjectArchived),
    "service_account.created": Shape(1, service_accounts.ServiceAccountCreated),
    "service_account.disabled": Shape(1, service_accounts.ServiceAccountDisabled),
    "service_account.enabled": Shape(1, service_accounts.ServiceAccountEnabled),
    "access.key_issued": Shape(1, access.ApiKeyIssued),
    "access.key_replaced": Shape(1, access.ApiKeyReplaced),
    "access.key_revoked": Shape(1, access.ApiKeyRevoked),
    "access.principal_revoked": Shape(1, principals.PrincipalRevoked),
    "access.session_started": Shape(1, sessions.SessionStarted),
    "access.session_ended": Shape(1, sessions.SessionEnded),
    "order.refused": Shape(1, orders.OrderRefused),
    "order.message_refused": Shape(1, orders.MessageRefused),
    "projection.rebuild_requested": Shape(1, projections.ProjectionRebuildOrdered),
    "projection.rebuilt": Shape(1, projections.ProjectionRebuilt),
    "projection.event_skipped": Shape(1, projections.ProjectionEventSkipped),
    "projection.retried": Shape(1, projections.ProjectionRetried),
}
_SHAPES: Final = Shapes(CATALOG, UPCASTS)
name_of = _SHAPES.name_of
encode = _SHAPES.encode
decode = _SHAPES.decode
READERS: Final = _SHAPES.readers
