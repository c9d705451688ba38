"""The life of a slot: discovered -> free -> claimed -> releasing (-> withheld) -> free.

A slot's state stands in its row, which changes in the append that records why; here is what each change
may follow. Its MAC is derived from its name (ALC-3) and its address is its place in the node's subnet, so
both are the same for ever. Of tens of thousands of slots some derive the same MAC: who is approved later goes one on.
"""

import hashlib
import ipaddress
from collections.abc import Collection
from typing import Final

from control_plane.decisions.refusals import Conflict, Objection
from control_plane.decisions.skus import best_fit
from events.facts import Reason
from events.slots import (
    SlotApproved,
    SlotClaimed,
    SlotDevice,
    SlotDevicesDescribed,
    SlotDevicesGranted,
    SlotDiscovered,
    SlotFact,
    SlotFreedUnproved,
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
    PciAddress,
    SlotId,
    SlotIndex,
    index_of,
    mac_address,
    node_of,
    slot_of,
)

Described = tuple[tuple[SlotDevice, ...], int | None]
"""A slot's PCI functions, and the NUMA node of its memory."""
NOTHING_DESCRIBED: Final[Described] = ((), None)
BRIDGE: Final = "br-slice"
FIRST_HOST: Final = 10
"""Slot 0 gets the subnet's tenth host address: the ones below are the gateway's and the operator's."""
_TAIL: Final = 3


def discover(
    node: NodeId, known: dict[SlotIndex, SlotHardware], found: dict[SlotIndex, SlotHardware]
) -> tuple[SlotDiscovered, ...]:
    """Slots the node reports and nobody knew, or knew otherwise; a vanished one is drift, not a discovery."""
    return tuple(
        SlotDiscovered(slot_of(node, index), node, hardware)
        for index, hardware in sorted(found.items())
        if known.get(index) != hardware
    )


def approve(slot: SlotId, state: str, hardware: SlotHardware, network: SlotNetwork) -> SlotApproved:
    """Fix the slot's identity. Raises `Conflict` unless it waits for approval and fits a SKU."""
    if state != "discovered":
        raise Conflict(Objection("not_awaiting_approval", f"slot {slot} is {state}, not awaiting approval"))
    sku = best_fit(hardware)
    if sku is None:
        raise Conflict(Objection("no_fitting_sku", f"slot {slot} is smaller than every SKU"))
    return SlotApproved(slot, sku.name, network)


def described(
    slot: SlotId,
    known: Described,
    found: Described,
) -> tuple[SlotDevicesDescribed, ...]:
    """What a node says of a slot's PCI functions, where it is news."""
    return () if known == found else (SlotDevicesDescribed(slot, *found),)


def grant(
    slot: SlotId, granted: Collection[PciAddress], devices: Collection[SlotDevice]
) -> tuple[SlotFact, ...]:
    """Let the slot have what its node describes; none where it has just that."""
    wanted = tuple(sorted(each.address for each in devices))
    added = tuple(each for each in wanted if each not in granted)
    withdrawn = tuple(sorted(each for each in granted if each not in wanted))
    if not added and not withdrawn:
        return ()
    return (SlotDevicesGranted(slot, node_of(slot), wanted, added, withdrawn),)


def network_of(slot: SlotId, subnet: Ipv4Subnet, l2_domain: str, taken: Collection[str] = ()) -> SlotNetwork:
    """The slot's place in its networks, with the first MAC that is not `taken` in its domain. Raises `Conflict`."""
    mac = next((each for each in derived_macs(slot) if each not in taken), None)
    if mac is None:
        raise Conflict(Objection("mac_taken", f"every MAC that can be derived for slot {slot} is taken"))
    hosts = ipaddress.IPv4Network(subnet)
    return SlotNetwork(
        l2_domain=l2_domain,
        mac_address=mac,
        private_ip=Ipv4Address(str(hosts[FIRST_HOST + index_of(slot)])),
        subnet=subnet,
        gateway=Ipv4Address(str(hosts[1])),
        bridge=BRIDGE,
    )


def derived_macs(slot: SlotId) -> tuple[MacAddress, ...]:
    """52:54:00 and three bytes of SHA-256 over the slot's id (ALC-3): the first three, then the next, and so on."""
    digest = hashlib.sha256(slot.encode()).digest()
    return tuple(
        mac_address("52:54:00:" + digest[start : start + _TAIL].hex(":"))
        for start in range(0, len(digest) - _TAIL + 1, _TAIL)
    )


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


def free_unproved(
    slot: SlotId, holder: AllocationId | None, state: str, why: str, leftovers: tuple[str, ...]
) -> SlotFreedUnproved:
    """Free the slot although nobody proved it empty (ALC-11). Raises `Conflict` unless that is all it waits for."""
    return SlotFreedUnproved(slot, holder_awaiting_proof(slot, holder, state), why, leftovers)


def holder_awaiting_proof(slot: SlotId, holder: AllocationId | None, state: str) -> AllocationId:
    """Whose slice the node has yet to prove gone. Raises `Conflict` when there is none."""
    if holder is None or state not in ("releasing", "withheld"):
        why = f"slot {slot} is {state}, and does not wait for its node to prove it empty"
        raise Conflict(Objection("not_awaiting_proof", why))
    return holder
