"""Check of a recorded history of claims against the model of exclusive slots: each resource has at most one holder, and
a request is refused only if no slot was free during its whole duration.

A caller has the times at which it sent a request and got the answer, but the request took effect at some time
between. So a resource is certainly held from the answer that granted it until the request that releases it, and
certainly free from the answer that showed its release until the request that was granted next. A history agrees with
the model exactly if no two certain holds of one resource overlap (then some order of the effects is possible for each
resource), and if no refusal lies within a time in which one slot is certainly free. The check uses what callers saw,
and not the ledger.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Span(NamedTuple):
    """The times at which a request was sent and its answer arrived, on one clock, in seconds."""

    begin: float
    end: float


class Grant(NamedTuple):
    """A granted request: its resources (`slot lab-a/0`, `mac 02:...`, `port tcp/203.0.113.7:22000`), the request that
    was granted, and the release, which ends when the answer arrived that showed its completion.
    """

    resources: frozenset[str]
    granted: Span
    released: Span


class Refusal(NamedTuple):
    """A request that was refused because no slot is free."""

    asked: Span


def objections(
    slots: Collection[str], grants: Sequence[Grant], refusals: Iterable[Refusal]
) -> tuple[str, ...]:
    """Return every contradiction between a history and the model; empty if there is none. All `slots` are free at the
    begin.
    """
    by_resource = defaultdict[str, list[Grant]](list)
    for grant in grants:
        for resource in grant.resources:
            by_resource[resource].append(grant)
    found = list[str]()
    for resource, holds in sorted(by_resource.items()):
        holds.sort(key=lambda each: each.granted.end)
        found += [
            f"{resource} was granted twice: until {first.released.begin:.6f} and from {second.granted.end:.6f}"
            for first, second in pairwise(holds)
            if second.granted.end < first.released.begin
        ]
    free = {slot: _certainly_free(by_resource.get(slot, ())) for slot in slots}
    found += [
        f"a request was refused from {asked.begin:.6f} to {asked.end:.6f}, while {slot} was free all the time"
        for (asked,) in refusals
        for slot, spans in free.items()
        if any(span.begin <= asked.begin and asked.end <= span.end for span in spans)
    ]
    return tuple(found)


def _certainly_free(holds: Iterable[Grant]) -> tuple[Span, ...]:
    # Grants do not overlap, so this is their order: a request that was sent earlier can be granted later.
    ordered = sorted(holds, key=lambda each: each.granted.end)
    ends = (float("-inf"), *(each.released.end for each in ordered))
    begins = (*(each.granted.begin for each in ordered), float("inf"))
    return tuple(Span(end, begin) for end, begin in zip(ends, begins, strict=True) if end < begin)
