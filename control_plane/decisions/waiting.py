"""Decisions about requests that wait for capacity: which refusals a request can wait out, in which order waiting
requests are placed, and which slots are kept for them.

The rules are those of EASY backfilling. Requests are tried in their order, and one that does not fit lets later ones
pass. So that it does not wait permanently while smaller requests take every slot that becomes free, a node is kept for
it: the one where it fits first, according to the ends of leases. Others get slots there only if their lease ends before
the request is expected to start. The number of kept nodes and of requests that are tried is bounded, so that a pass has
a bounded cost however many requests wait.

No request takes slots that a request ahead of it could take. A request that does not wait has the priority 0, and is
behind all waiting requests of this priority.
"""

from collections.abc import Collection, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from control_plane.decisions.codes import CODES, RefusalClass
from control_plane.decisions.public_addresses import AddressRequest, IngressRequest, PortRequest
from control_plane.decisions.refusals import Conflict
from events.allocations import AllocationQueued, AllocationRequested, AllocationSpecified, QueuedIngress
from events.derived.waiting import Place, place_of
from events.values import IngressId, NodeId

MOST_QUEUED: Final = 1000
"""Maximum number of waiting requests that one pass considers: the first ones in their order."""
MOST_TRIED: Final = 32
"""Maximum number of different needs of waiting requests that are tried. A pass ends when so many needs did not fit, and
a later request is compared with so many needs of requests ahead of it."""
MOST_KEPT: Final = 8
"""Number of nodes that are kept for waiting requests at a time, at most one for each SKU."""


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A waiting request: its order, and everything that its placement depends on. `actor` is the caller."""

    request: AllocationRequested
    specified: AllocationSpecified
    queued: AllocationQueued
    actor: str

    @property
    def place(self) -> Place:
        """Sort key of the request in the order in which waiting requests are placed."""
        return place_of(self.queued)

    @property
    def need(self) -> Hashable:
        """What the request needs of a node. If it does not fit, a later request with an equal need does not either."""
        request = self.request
        apart = (request.project, *sorted(request.apart_from.items())) if request.apart_from else ()
        rules = tuple((each.protocol, each.public_port, each.slot) for each in self.queued.ingress)
        profile = self.specified.app_profile
        return (
            request.sku,
            self.specified.sku.content,
            self.specified.image.content.format,
            request.image,
            None if profile is None else profile.content.fabrics,
            request.slot_count,
            request.node,
            request.lease_seconds,
            apart,
            rules,
        )


class Kept(NamedTuple):
    """A node that is kept for the request at `place`: its free slots of these classes are given to requests behind only
    if their lease ends by `until`, when the request is expected to start there (None: not known).
    """

    place: Place
    node: NodeId
    classes: frozenset[str]
    until: datetime | None


class Outcome(StrEnum):
    """Result of the attempt to place a waiting request."""

    PLACED = "placed"
    NO_CAPACITY = "no_capacity"
    NOT_ADMITTED = "not_admitted"
    """A quota or the state of the project does not permit the placement now. Later requests may be placed first."""
    GONE = "gone"
    """The request does not wait any more."""


class Try(NamedTuple):
    """Step of a pass over the waiting requests: try to place this request."""

    request: QueuedRequest


class Keep(NamedTuple):
    """Step of a pass over the waiting requests: keep a node free for this request, which fits on no node now."""

    request: QueuedRequest


def may_wait(refusal: Conflict) -> bool:
    """Return whether a request with this refusal can be placed later, without a change of the request, the caller or
    its limits.
    """
    classes = {CODES[each.code].refusal_class for each in refusal.objections}
    return classes == {RefusalClass.UNAVAILABLE}


def one_pass(queue: Iterable[QueuedRequest]) -> Generator[Try | Keep, Outcome, None]:
    """Yield the steps of one pass over `queue`, the waiting requests in the order of their turn. The caller passes the
    outcome of each attempt with `send`.
    """
    refused, kept = set[Hashable](), set[str]()
    for each in queue:
        if each.need in refused:
            continue
        if (yield Try(each)) is not Outcome.NO_CAPACITY:
            continue
        refused.add(each.need)
        if len(kept) < MOST_KEPT and each.request.sku not in kept:
            kept.add(each.request.sku)
            yield Keep(each)
        if len(refused) == MOST_TRIED:
            return


def different_needs(queue: Iterable[QueuedRequest]) -> Iterator[QueuedRequest]:
    """Yield the first request of each need, at most `MOST_TRIED`."""
    seen = set[Hashable]()
    for each in queue:
        if len(seen) == MOST_TRIED:
            return
        if each.need not in seen:
            seen.add(each.need)
            yield each


def kept_from(
    kept: Iterable[Kept], place: Place, classes: Collection[str], lease_end: datetime
) -> frozenset[NodeId]:
    """Return the nodes with slots kept from a request at `place`, which could use slots of these classes with a
    lease until `lease_end`.
    """
    return frozenset(
        each.node
        for each in kept
        if each.place.is_ahead_of(place)
        and not each.classes.isdisjoint(classes)
        and (each.until is None or lease_end > each.until)
    )


def queued_ingress(name: IngressId, rule: IngressRequest) -> QueuedIngress:
    """Return the form in which a requested ingress rule is recorded while its allocation waits."""
    match rule.to:
        case PortRequest(protocol=protocol, port=port, public_port=public_port):
            return QueuedIngress(name, rule.slot, rule.sources, protocol, port, public_port)
        case AddressRequest():
            return QueuedIngress(name, rule.slot, rule.sources)


def requested_ingress(recorded: QueuedIngress) -> IngressRequest:
    """Return the requested ingress rule from the form in which it is recorded while its allocation waits."""
    if recorded.protocol is None or recorded.port is None:
        return IngressRequest(recorded.slot, AddressRequest(), recorded.sources)
    to = PortRequest(recorded.protocol, recorded.port, recorded.public_port)
    return IngressRequest(recorded.slot, to, recorded.sources)
