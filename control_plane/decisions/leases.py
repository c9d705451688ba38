"""Decisions about the length of a lease and about its end: which limits a length has, and when the end is announced.

All times are the database's: the grant has the time of its transaction, and a renewal the time of its record. The
clocks of nodes and of the control plane's hosts decide nothing.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from control_plane.decisions.refusals import Objection
from events.allocations import (
    AllocationFact,
    AllocationSpecified,
    LeaseExpiring,
    LeaseGranted,
    LeaseRenewed,
)
from events.envelope import Recorded
from events.projects import ProjectLimits
from events.values import ProjectId


class LeaseLimit(NamedTuple):
    """The longest time, in seconds, that a lease may run from a request or a renewal on. `source` is what sets the
    limit, such as `SKU lab.small`.
    """

    seconds: int
    source: str


def limits_of(specification: AllocationSpecified) -> tuple[LeaseLimit, ...]:
    """Return the limit of a lease that the SKU sets, as the allocation has recorded the SKU; empty if there is none."""
    sku = specification.sku
    return _limit(sku.content.max_lease_seconds, f"SKU {sku.name}")


def limits_of_project(project: ProjectId, limits: ProjectLimits) -> tuple[LeaseLimit, ...]:
    """Return the limit of a lease that a project sets now; empty if there is none."""
    return _limit(limits.max_lease_seconds, f"project {project}")


def _limit(seconds: int | None, source: str) -> tuple[LeaseLimit, ...]:
    return () if seconds is None else (LeaseLimit(seconds, source),)


def against_length(seconds: int, limits: Iterable[LeaseLimit]) -> list[Objection]:
    """Return an objection for each limit that a lease of this length, in seconds from now, exceeds."""
    return [
        Objection(
            "lease_too_long",
            f"a lease of {seconds} s is longer than the {each.source} allows ({each.seconds} s); request at most"
            f" {each.seconds} s",
            "/lease_seconds",
        )
        for each in limits
        if seconds > each.seconds
    ]


class LeaseTerm(NamedTuple):
    """The time from the grant of a lease, or from its last renewal, to its end. `announced` is the shortest lead time
    for which the end was announced; None if it was not announced in this term.
    """

    began_at: datetime
    ends_at: datetime
    announced: timedelta | None = None

    def next_lead(self, leads: Collection[timedelta], now: datetime) -> timedelta | None:
        """Return the lead time that is announced next, which may be due already; None if none is left.

        If several lead times have passed, for instance during an outage, it is the shortest of them.
        """
        left = [lead for lead in leads if self.is_open(lead)]
        passed = [lead for lead in left if self.ends_at - lead <= now]
        return min(passed) if passed else max(left, default=None)

    def is_open(self, lead: timedelta) -> bool:
        """Return whether the end may still be announced with this lead time: whether the lead time is shorter than the
        term, and than every lead time that was announced in this term.
        """
        return lead < (self.ends_at - self.began_at if self.announced is None else self.announced)


def term_of(history: Iterable[Recorded[AllocationFact]]) -> LeaseTerm | None:
    """Return the present term of an allocation's lease; None before the lease is granted."""
    term: LeaseTerm | None = None
    for recorded in history:
        match recorded.fact:
            case LeaseGranted(granted_at=began_at, expires_at=ends_at):
                term = LeaseTerm(began_at, ends_at)
            case LeaseRenewed(expires_at=ends_at):
                term = LeaseTerm(recorded.recorded_at, ends_at)
            case LeaseExpiring(lead_seconds=seconds) if term is not None:
                term = term._replace(announced=timedelta(seconds=seconds))
            case _:
                pass
    return term
