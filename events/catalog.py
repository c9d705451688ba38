"""The only table between facts and their stored names.

A stored name is for ever, a class name is not. Names read `<thing>.<what_happened>`; the schema version
counts shapes of one name. Payloads are canonical JSON: keys sorted, no white space, UTF-8.
"""

from typing import Final

import msgspec

from events import access, allocations, nodes, orders, slots
from events.facts import Fact

CATALOG: Final[dict[str, tuple[int, type[Fact]]]] = {
    "node.expected": (1, nodes.NodeExpected),
    "node.enrolment_reopened": (1, nodes.EnrolmentReopened),
    "node.enrolled": (1, nodes.NodeEnrolled),
    "node.inspected": (1, nodes.NodeInspected),
    "slot.discovered": (1, slots.SlotDiscovered),
    "slot.approved": (1, slots.SlotApproved),
    "slot.claimed": (1, slots.SlotClaimed),
    "slot.releasing": (1, slots.SlotReleasing),
    "slot.withheld": (1, slots.SlotWithheld),
    "slot.released": (1, slots.SlotReleased),
    "allocation.requested": (1, allocations.AllocationRequested),
    "allocation.placed": (1, allocations.AllocationPlaced),
    "allocation.slice_starting": (1, allocations.SliceStarting),
    "allocation.slice_address_observed": (1, allocations.SliceAddressObserved),
    "allocation.slice_ready": (1, allocations.SliceReady),
    "allocation.activated": (1, allocations.AllocationActivated),
    "allocation.lease_granted": (1, allocations.LeaseGranted),
    "allocation.slice_interrupted": (1, allocations.SliceInterrupted),
    "allocation.lease_expired": (1, allocations.LeaseExpired),
    "allocation.releasing": (1, allocations.AllocationReleasing),
    "allocation.failed": (1, allocations.AllocationFailed),
    "allocation.lease_ended": (1, allocations.LeaseEnded),
    "allocation.slice_removal_unproved": (1, allocations.SliceRemovalUnproved),
    "allocation.slice_removed": (1, allocations.SliceRemoved),
    "allocation.released": (1, allocations.AllocationReleased),
    "access.key_issued": (1, access.ApiKeyIssued),
    "order.refused": (1, orders.OrderRefused),
}
_NAMES: Final[dict[type[Fact], tuple[str, int]]] = {cls: (name, v) for name, (v, cls) in CATALOG.items()}
_DECODERS: Final = {(name, version): msgspec.json.Decoder(cls) for name, (version, cls) in CATALOG.items()}
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


class UnknownFact(LookupError):
    """The ledger holds a type or version that this release does not know; a newer release wrote it."""

    def __init__(self, type_: str, schema_version: int) -> None:
        super().__init__(f"no fact is known as {type_!r} version {schema_version}")
        self.type, self.schema_version = type_, schema_version


def name_of(fact: Fact) -> str:
    """The stored name of a fact."""
    return _NAMES[type(fact)][0]


def encode(fact: Fact) -> tuple[str, int, str]:
    """Stored name, schema version and canonical JSON of a fact."""
    name, version = _NAMES[type(fact)]
    return name, version, _ENCODER.encode(fact).decode()


def decode(type_: str, schema_version: int, data: str) -> Fact:
    """The fact behind a stored row. Raises `UnknownFact`."""
    try:
        decoder = _DECODERS[type_, schema_version]
    except KeyError:
        raise UnknownFact(type_, schema_version) from None
    return decoder.decode(data)
