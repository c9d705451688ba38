"""Decisions about the length of a lease: which limits it has, and whether a requested length exceeds one of them."""

from collections.abc import Iterable
from typing import NamedTuple

from control_plane.decisions.refusals import Objection
from events.allocations import AllocationSpecified


class LeaseLimit(NamedTuple):
    """The longest time, in seconds, that a lease may run from a request or a renewal on. `source` is what sets the
    limit, such as `SKU lab.small`.
    """

    seconds: int
    source: str


def limits_of(specification: AllocationSpecified) -> tuple[LeaseLimit, ...]:
    """Return the limits that the entries of the catalogue set, as the allocation has recorded them."""
    sku = specification.sku
    if sku.content.max_lease_seconds is None:
        return ()
    return (LeaseLimit(sku.content.max_lease_seconds, f"SKU {sku.name}"),)


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
