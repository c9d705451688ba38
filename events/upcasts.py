"""How the shapes of the past become today's: one function from each version of a type to the next, for ever.

A fact is stored in the shape of its day and never touched again. When the shape of a type changes, its version rises
by one, and the function that makes the old shape the new one is entered here; reading an old row runs all of them
from its version on. So each function knows two neighbouring shapes, and none is ever changed or removed again:
what it says about the past is part of the past.

A function gets the decoded JSON object, which is its own to change, and returns one. It is pure: no clock, no
database, no other event. It takes whatever the old release could write. It may rename a field, split it, and
say what an absent one meant; it may not guess. One fact stays one fact. A type that nobody writes any more keeps its
entry in `events.catalog`, and the class that it is read as.

`events.shapes` refuses a table with a gap, and with an entry that no version needs, when the program starts. How a
new shape is rolled out stands in docs/events.md.
"""

from typing import Final

from events.shapes import JsonObject, Rewrite


def _drift_named_no_way(shape: JsonObject) -> JsonObject:
    """Drift did not say which way in it was about."""
    return shape


def _every_request_is_replaced_on_failure(shape: JsonObject) -> JsonObject:
    """A request could neither name its node nor forbid a placement on another one."""
    return shape


UPCASTS: Final[dict[tuple[str, int], Rewrite]] = {
    ("allocation.requested", 1): _every_request_is_replaced_on_failure,
    ("node.degraded", 1): _drift_named_no_way,
    ("node.mended", 1): _drift_named_no_way,
    ("slot.degraded", 1): _drift_named_no_way,
    ("slot.mended", 1): _drift_named_no_way,
}
"""(Stored name, version) to the function that makes this version the next."""
