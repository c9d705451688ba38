"""The life of a slot: discovered -> free -> claimed -> releasing (-> withheld) -> free.

A slot's state stands in its row, which changes in the append that records why; here is what each change
may follow. Its MAC is derived from its name (ALC-3) and its address is its place in the node's subnet, so
both are the same for ever and collide visibly.
"""

import hashlib
import ipaddress
from typing import Final

from control_plane.decisions.refusals import Conflict, Objection
from control_plane.decisions.skus import best_fit
from events.facts import Reason
from events.slots import (
    SlotApproved,
    SlotClaimed,
    SlotDiscovered,
    SlotFact,
    SlotHardware,
    SlotNetwork,
    SlotReleased,
    SlotReleasing,
    SlotWithheld,
)
from events.values import (
    AllocationId,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NodeId,
    SlotId,
    SlotIndex,
    index_of,
    mac_address,
    node_of,
    slot_of,
)

BRIDGE: Final = "br-slice"
FIRST_HOST: Final = 10
"""Slot 0 gets the subnet's tenth host address: the ones below are the gateway's and the operator's."""


def discover(
    node: NodeId, known: dict[SlotIndex, SlotHardware], found: dict[SlotIndex, SlotHardware]
) -> tuple[SlotDiscovered, ...]:
    """Slots the node reports and nobody knew, or knew otherwise; a vanished one is drift, not a discovery."""
    return tuple(
        SlotDiscovered(slot_of(node, index), node, hardware)
        for index, hardware in sorted(found.items())
        if known.get(index) != hardware
    )


def approve(
    slot: SlotId, state: str, hardware: SlotHardware, subnet: Ipv4Subnet, l2_domain: str
) -> SlotApproved:
    """Fix the slot's identity. Raises `Conflict` unless it waits for approval and fits a SKU."""
    if state != "discovered":
        raise Conflict(Objection("not_awaiting_approval", f"slot {slot} is {state}, not awaiting approval"))
    sku = best_fit(hardware)
    if sku is None:
        raise Conflict(Objection("no_fitting_sku", f"slot {slot} is smaller than every SKU"))
    return SlotApproved(slot, sku.name, network_of(slot, subnet, l2_domain))


def network_of(slot: SlotId, subnet: Ipv4Subnet, l2_domain: str) -> SlotNetwork:
    hosts = ipaddress.IPv4Network(subnet)
    return SlotNetwork(
        l2_domain=l2_domain,
        mac_address=derived_mac(slot),
        private_ip=Ipv4Address(str(hosts[FIRST_HOST + index_of(slot)])),
        subnet=subnet,
        gateway=Ipv4Address(str(hosts[1])),
        bridge=BRIDGE,
    )


def derived_mac(slot: SlotId) -> MacAddress:
    """52:54:00 and three bytes of SHA-256 over the slot's id (ALC-3)."""
    tail = hashlib.sha256(slot.encode()).digest()[:3]
    return mac_address("52:54:00:" + tail.hex(":"))


def claim(slot: SlotId, allocation: AllocationId) -> SlotFact:
    return SlotClaimed(slot, allocation)


def give_back(
    slot: SlotId, holder: AllocationId | None, state: str, by: AllocationId
) -> tuple[SlotFact, ...]:
    """The allocation is done with the slot: it is wanted empty."""
    return (SlotReleasing(slot, by),) if holder == by and state == "claimed" else ()


def withhold(
    slot: SlotId, holder: AllocationId | None, state: str, by: AllocationId, leftovers: tuple[str, ...]
) -> tuple[SlotFact, ...]:
    if holder != by or state not in ("releasing", "withheld"):
        return ()
    reason = Reason(
        "absence_not_proved", f"node {node_of(slot)} still finds {len(leftovers)} things of the slice"
    )
    return (SlotWithheld(slot, by, reason, leftovers),)


def free(
    slot: SlotId, holder: AllocationId | None, state: str, by: AllocationId, absent: tuple[str, ...]
) -> tuple[SlotFact, ...]:
    if holder != by or state not in ("releasing", "withheld"):
        return ()
    return (SlotReleased(slot, by, absent),)
