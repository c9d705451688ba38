"""What a fact takes and frees (LED-3): one holder for each (kind, value), whoever asks.

Append writes these rows and a rebuild derives them again, so nothing else may touch them. The holder is the
stream on which the fact is recorded.
"""

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from events.facts import Fact
from events.ingress import IngressMapping, IngressRemoved, IngressReserved
from events.nodes import NodeAddressesChanged, NodeExpected, NodeRemoved
from events.slots import SlotApproved, SlotClaimed, SlotDevicesGranted, SlotFreedUnproved, SlotReleased

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

Text = TypeVar("Text", str, "ColumnElement[str]")
"""A text, or what the database makes one of."""


class Claim(NamedTuple):
    kind: str
    value: str


class Claims(NamedTuple):
    takes: tuple[Claim, ...] = ()
    frees: tuple[Claim, ...] = ()


NOTHING = Claims()
CLAIMING: Final = (
    NodeExpected,
    NodeRemoved,
    NodeAddressesChanged,
    SlotApproved,
    SlotDevicesGranted,
    SlotClaimed,
    SlotReleased,
    SlotFreedUnproved,
    IngressReserved,
    IngressRemoved,
)
"""The facts that take or free anything."""


def claims_of(fact: Fact) -> Claims:
    match fact:
        case NodeExpected(subnet=subnet):
            return Claims(takes=(Claim("subnet", subnet),))
        case NodeRemoved(subnet=subnet):
            return Claims(frees=(Claim("subnet", subnet),))
        case NodeAddressesChanged(added=added, withdrawn=withdrawn):
            return Claims(
                takes=tuple(Claim("public", address) for address in added),
                frees=tuple(Claim("public", address) for address in withdrawn),
            )
        case IngressReserved(mapping=mapping):
            return Claims(takes=(way_in(mapping),))
        case IngressRemoved(mapping=mapping):
            return Claims(frees=(way_in(mapping),))
        case SlotApproved(network=network):
            return Claims(
                takes=(
                    Claim("mac", f"{network.l2_domain}/{network.mac_address}"),
                    Claim("ip", f"{network.subnet}/{network.private_ip}"),
                )
            )
        case SlotDevicesGranted(node_id=node, added=added, withdrawn=withdrawn):
            return Claims(
                takes=tuple(Claim("pci", f"{node}/{address}") for address in added),
                frees=tuple(Claim("pci", f"{node}/{address}") for address in withdrawn),
            )
        case SlotClaimed(slot_id=slot):
            return Claims(takes=(Claim("slot", slot),))
        case SlotReleased(slot_id=slot) | SlotFreedUnproved(slot_id=slot):
            return Claims(frees=(Claim("slot", slot),))
        case _:
            return NOTHING


def way_in(mapping: IngressMapping) -> Claim:
    """A public address, or one port of it: an address is given out as a whole or by its ports, never both."""
    if mapping.service is None:
        return Claim("port", mapping.public_address)
    service = mapping.service
    return Claim("port", by_port(service.protocol, mapping.public_address, service.public_port))


def by_port(protocol: str, address: Text, port: int) -> Text:
    """The value of the claim on one port of a public address."""
    return f"{protocol}/" + address + f":{port}"


def by_any_port(protocol: str, address: Text) -> tuple[Text, Text]:
    """Between these values stand the claims on ports of a public address, and no others."""
    return f"{protocol}/" + address + ":", f"{protocol}/" + address + ";"


def ways_by(address: Text) -> tuple[tuple[Text, Text], ...]:
    """Between these values, each pair inclusive, stand all claims on a public address or on a port of it."""
    return (address, address), by_any_port("tcp", address), by_any_port("udp", address)
