"""Upcasters: one permanent function from each schema version of a type to the next.

A fact is stored in the shape that was current at the time and never changed. When the shape of a type changes, its
version rises by one, and the function that converts the old shape to the new one is entered here; reading an old row
applies all functions from its version on. So each function converts one shape to the next, and no function is ever
changed or removed.

A function gets the decoded JSON object, which it may modify, and returns one. It is pure: no clock, no database, no
other event. It accepts everything that the old release could write. It may rename or split a field and define the
meaning of an absent field, but it must not guess values. One fact stays one fact. A type that is no longer written
keeps its entry in `events.catalog` and the class that it is read as.

At program start `events.shapes` raises `BrokenCatalog` if an entry is missing or not needed. docs/events.md describes
the rollout of a new shape.
"""

from typing import Final

from events.shapes import JsonObject, Rewrite


def _request_without_options(shape: JsonObject) -> JsonObject:
    """Return an allocation request of version 1 unchanged. Version 2 added `node` and `replace_on_failure`, and their
    defaults are what version 1 meant: placement chose the node, and chose another node after a node fault.
    """
    return shape


def _devices_without_facts(shape: JsonObject) -> JsonObject:
    """Return a description of devices of version 1 unchanged. Version 2 added facts about each function, from
    `unreadable` to `evidence`, and their defaults are what version 1 meant: the node did not report them.
    """
    return shape


def _approved_for_one_sku(shape: JsonObject) -> JsonObject:
    """Return an approval of version 1 with a list of SKUs. Version 1 named exactly one SKU."""
    sku, others = shape["sku"], {name: value for name, value in shape.items() if name != "sku"}
    return {**others, "skus": [sku]}


def _slot_without_use(shape: JsonObject) -> JsonObject:
    """Return a claim or release of a slot of version 1 unchanged. Version 2 added `use`, and its default is what
    version 1 meant: the slot counts towards no quota, because quotas did not exist.
    """
    return shape


def _ingress_without_project(shape: JsonObject) -> JsonObject:
    """Return a reservation or removal of an ingress rule of version 1 unchanged. Version 2 added `project`, and its
    default is what version 1 meant: the rule counts towards no quota, because quotas did not exist.
    """
    return shape


UPCASTS: Final[dict[tuple[str, int], Rewrite]] = {
    ("allocation.requested", 1): _request_without_options,
    ("slot.devices_described", 1): _devices_without_facts,
    ("slot.approved", 1): _approved_for_one_sku,
    ("slot.claimed", 1): _slot_without_use,
    ("slot.released", 1): _slot_without_use,
    ("slot.force_released", 1): _slot_without_use,
    ("ingress.reserved", 1): _ingress_without_project,
    ("ingress.removed", 1): _ingress_without_project,
}
"""Upcasters by stored name and version; each converts that version to the next."""
