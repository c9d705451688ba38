"""Claims that facts take and free (LED-3): each claim, a (kind, value) pair, has at most one holder.

The holder is the stream on which the fact is recorded. The append writes the claim rows and a rebuild derives them
again from the facts, so no other code may change them.
"""

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from events.facts import Fact
from events.ingress import IngressRemoved, IngressReserved, IngressRule
from events.nodes import NodeAddressesChanged, NodeRegistered, NodeRemoved
from events.slots import (
    SlotApproved,
    SlotClaimed,
    SlotDevicesGranted,
    SlotForceReleased,
    SlotNetwork,
    SlotReleased,
    SlotReprovisioned,
)

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

Text = TypeVar("Text", str, "ColumnElement[str]")
"""A Python string, or an SQL expression that yields a string."""


class Claim(NamedTuple):
    """Claim on an object (slot, MAC, address, subnet), identified by kind and value, which at most one stream holds."""

    kind: str
    value: str


class Claims(NamedTuple):
    """The claims that a fact takes and frees for its stream."""

    takes: tuple[Claim, ...] = ()
    frees: tuple[Claim, ...] = ()


NOTHING = Claims()
CLAIMING: Final = (
    NodeRegistered,
    NodeRemoved,
    NodeAddressesChanged,
    SlotApproved,
    SlotReprovisioned,
    SlotDevicesGranted,
    SlotClaimed,
    SlotReleased,
    SlotForceReleased,
    IngressReserved,
    IngressRemoved,
)
"""The types of facts that take or free claims."""


def claims_of(fact: Fact) -> Claims:
    """Return the claims that a fact takes and frees."""
    match fact:
        # The most frequent facts first: a verification of the whole ledger calls this function for each claim.
        case SlotClaimed(slot_id=slot):
            return Claims(takes=(Claim("slot", slot),))
        case SlotReleased(slot_id=slot) | SlotForceReleased(slot_id=slot):
            return Claims(frees=(Claim("slot", slot),))
        case NodeRegistered(subnet=subnet):
            return Claims(takes=(Claim("subnet", subnet),))
        case NodeRemoved(subnet=subnet):
            return Claims(frees=(Claim("subnet", subnet),))
        case NodeAddressesChanged(added=added, withdrawn=withdrawn):
            return Claims(
                takes=tuple(Claim("public", address) for address in added),
                frees=tuple(Claim("public", address) for address in withdrawn),
            )
        case IngressReserved(rule=mapping):
            return Claims(takes=(ingress_claim(mapping),))
        case IngressRemoved(rule=mapping):
            return Claims(frees=(ingress_claim(mapping),))
        case SlotApproved(network=network) | SlotReprovisioned(network=network):
            previous = fact.previous if isinstance(fact, SlotReprovisioned) else None
            return Claims(takes=_addresses(network), frees=_addresses(previous) if previous else ())
        case SlotDevicesGranted(node_id=node, added=added, withdrawn=withdrawn):
            return Claims(
                takes=tuple(Claim("pci", f"{node}/{address}") for address in added),
                frees=tuple(Claim("pci", f"{node}/{address}") for address in withdrawn),
            )
        case _:
            return NOTHING


def _addresses(network: SlotNetwork) -> tuple[Claim, ...]:
    return (
        Claim("mac", f"{network.l2_domain}/{network.mac_address}"),
        Claim("ip", f"{network.subnet}/{network.private_ip}"),
    )


def ingress_claim(mapping: IngressRule) -> Claim:
    """Return the claim of an ingress rule on its public address, or on one port of it.

    An address is assigned either as a whole or by single ports, never both.
    """
    if mapping.service is None:
        return Claim("port", mapping.public_address)
    service = mapping.service
    return Claim("port", port_claim_value(service.protocol, mapping.public_address, service.public_port))


def port_claim_value(protocol: str, address: Text, port: int) -> Text:
    """Return the value by which a claim on one port of a public address is identified."""
    return f"{protocol}/" + address + f":{port}"


def port_claim_bounds(protocol: str, address: Text) -> tuple[Text, Text]:
    """Return a lower and an upper bound: in sorted order, exactly the values of claims on ports of the public address
    are between them.
    """
    return f"{protocol}/" + address + ":", f"{protocol}/" + address + ";"


def address_claim_bounds(address: Text) -> tuple[tuple[Text, Text], ...]:
    """Return pairs of inclusive bounds for the values of all claims on a public address, as a whole or by port."""
    return (address, address), port_claim_bounds("tcp", address), port_claim_bounds("udp", address)
