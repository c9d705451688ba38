"""All read models, by name. Each can be rebuilt from the ledger, and compared with a rebuild.

Inline read models are written in the transaction that appends events to the ledger; the others are written by the
projector, and its checkpoint commits with their rows.
"""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from events.allocations import (
    AllocationRequested,
    AllocationSpecified,
    LeaseEnded,
    LeaseGranted,
    LeaseRenewed,
)
from events.claims import CLAIMING
from events.facts import Fact
from events.projects import PersonalDataDestroyed, ProjectReservationsSet
from events.slots import SlotClaimed, SlotForceReleased, SlotReleased
from events.values import ProjectId
from read_models import allocations, capacity, holdings, projects
from read_models.inline import (
    BILLING,
    CATALOGUE,
    KEYS,
    NODES,
    PRINCIPALS,
    PROJECTS,
    QUOTA_USE,
    SERVICE_ACCOUNTS,
    SESSIONS,
    SLOTS,
    WAITING,
)
from read_models.rows import Derived, Inserted, Patched, Selected, Summed
from read_models.usage import tables as usage


@dataclass(frozen=True, slots=True)
class Projection:
    """A read model: its tables, each with the function or query that derives the table's rows from events.

    A read model that is not inline has only tables of immutable rows with a column `position`, so that it can be
    compared with another set of tables up to any position.
    """

    name: str
    parts: tuple[Patched | Summed | Inserted | Selected | Derived, ...]
    inline: bool = False

    def concerned_by(self, fact: type[Fact]) -> bool:
        """Return whether events with this type of fact affect the read model."""
        return any(issubclass(fact, part.facts) for part in self.parts)

    @property
    def tables(self) -> tuple[sa.Table, ...]:
        return tuple(part.table for part in self.parts)


PROJECTIONS: Final[dict[str, Projection]] = {
    each.name: each
    for each in (
        Projection("nodes", (NODES,), inline=True),
        Projection("slots", (SLOTS,), inline=True),
        Projection("keys", (KEYS,), inline=True),
        Projection("principals", (PRINCIPALS,), inline=True),
        Projection("projects", (PROJECTS,), inline=True),
        Projection("quota_use", (QUOTA_USE,), inline=True),
        Projection("billing", (BILLING,), inline=True),
        Projection("catalogue", (CATALOGUE,), inline=True),
        Projection("service_accounts", (SERVICE_ACCOUNTS,), inline=True),
        Projection("sessions", (SESSIONS,), inline=True),
        Projection("waiting", (WAITING,), inline=True),
        Projection(
            "allocations",
            (
                Inserted(allocations.allocation, (AllocationRequested,), allocations.request),
                Inserted(
                    allocations.allocation_label,
                    (AllocationRequested, PersonalDataDestroyed),
                    allocations.labels,
                    allocations.redact_labels,
                ),
                Selected(allocations.story, allocations.TIMELINE_ROWS),
            ),
        ),
        Projection("project_events", (Selected(projects.project_event, projects.EVENT_ROWS),)),
        Projection("holdings", (Inserted(holdings.holding, CLAIMING, holdings.changes),)),
        Projection(
            capacity.PROJECTION,
            (
                Derived(capacity.slot_status, SLOTS.facts, capacity.StatusRows),
                Derived(capacity.capacity, (), capacity.CapacityRows),
            ),
        ),
        Projection(
            usage.PROJECTION,
            (
                Inserted(
                    usage.usage_request,
                    (AllocationRequested, PersonalDataDestroyed),
                    usage.request_rows,
                    usage.redact_requests,
                ),
                Inserted(usage.usage_price, (AllocationSpecified,), usage.price_rows),
                Inserted(usage.usage_lease, (LeaseGranted, LeaseRenewed, LeaseEnded), usage.lease_rows),
                Inserted(usage.usage_reservation, (ProjectReservationsSet,), usage.reservation_rows),
                Inserted(usage.usage_slot, (SlotClaimed, SlotReleased, SlotForceReleased), usage.slot_rows),
            ),
        ),
    )
}


def redactions(project: ProjectId) -> list[sa.Update | sa.Delete]:
    """Return the statements that remove the personal data of a project from the read models that are not inline. The
    projector repeats them, because it may have read events before the erasure.
    """
    return [
        part.redact(project, None)
        for each in PROJECTIONS.values()
        for part in each.parts
        if isinstance(part, Inserted) and part.redact is not None
    ]
