"""Decisions about a slot: each takes the slot's state (`events.slot_states`) and returns facts, or raises a refusal.

The state of a slot is stored in its row, which is updated in the append that records the facts; this module decides
which changes are allowed in which state. The MAC is derived from the slot's id, or taken from the pool of its node
(ALC-3), and the IP address follows from the slot's index in the node's subnet. Both stay the same until an
administrator reprovisions the slot, which uses the next ones. Among tens of thousands of slots some derive the same
MAC: the slot that is approved later uses its next derived MAC.
"""

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar, assert_never

from msgspec.structs import replace

from control_plane.decisions.catalogue import retired_entry, specified_sku, unknown_entry
from control_plane.decisions.fleet.drift import ends_at_approval
from control_plane.decisions.fleet.macs import candidate_macs, no_mac_left
from control_plane.decisions.placing.suitability import against_offering, skus_among
from control_plane.decisions.refusals import Objection, refuse_if
from events.drift import OpenDrift
from events.entries import Entry
from events.facts import Reason
from events.nodes import NodeNetwork
from events.offers import Offer
from events.slot_states import (
    Claimed,
    Discovered,
    Free,
    Quarantined,
    Releasing,
    Retired,
    SlotState,
    holder_of,
    slot_state_name,
)
from events.slots import (
    ApprovedHardware,
    SlotApproved,
    SlotClaimed,
    SlotDevice,
    SlotDevicesDescribed,
    SlotDevicesGranted,
    SlotDiscovered,
    SlotFact,
    SlotForceReleased,
    SlotHardware,
    SlotHardwareApproved,
    SlotNetwork,
    SlotQuarantined,
    SlotReinstated,
    SlotReleased,
    SlotReleasing,
    SlotReprovisioned,
    SlotRetired,
    SlotSkusChanged,
    SlotUse,
)
from events.values import (
    MAX_SLOTS,
    AllocationId,
    Ipv4Address,
    Ipv4Subnet,
    NodeId,
    PciAddress,
    SkuName,
    SlotId,
    SlotIndex,
    index_of,
    node_of,
    slot_of,
)

Text = TypeVar("Text", bound=str)
Described = tuple[tuple[SlotDevice, ...], int | None]
"""A slot's PCI functions, and the NUMA node of its memory."""
NOTHING_DESCRIBED: Final[Described] = ((), None)
FIRST_HOST: Final = 10
"""Slot 0 gets the tenth host address of the subnet: the gateway and the operator use the addresses below."""
_NAMED: Final = 5
"""Number of leftovers that the reason of a quarantine names."""


def discover(
    node: NodeId, known: dict[SlotIndex, SlotHardware], found: dict[SlotIndex, SlotHardware]
) -> tuple[SlotDiscovered, ...]:
    """Return facts for the slots that are new or have different hardware. For a slot that the node no longer describes
    no fact is returned; `drift.vanished` reports it.
    """
    return tuple(
        SlotDiscovered(slot_of(node, index), node, hardware)
        for index, hardware in sorted(found.items())
        if known.get(index) != hardware
    )


def awaits_approval(state: SlotState) -> bool:
    """Return whether no administrator has approved the slot yet, or not again since it was retired."""
    match state:
        case Discovered() | Retired():
            return True
        case Free() | Claimed() | Releasing() | Quarantined():
            return False
        case _:
            assert_never(state)


def approve(slot: SlotId, state: SlotState, skus: Collection[SkuName], network: SlotNetwork) -> SlotApproved:
    """Approve a slot, which fixes its addresses and offers it under `skus`. Raises `Conflict` if the slot is approved
    already, or if `skus` is empty.
    """
    refuse_if(_against_first_approval(slot, state, skus))
    return SlotApproved(slot, tuple(sorted(skus)), network)


def reinstate(slot: SlotId, state: SlotState, skus: Collection[SkuName]) -> SlotReinstated:
    """Approve a retired slot again, with the addresses that it has. Raises `Conflict` if the slot is not retired, or if
    `skus` is empty.
    """
    refuse_if(_against_first_approval(slot, state, skus))
    return SlotReinstated(slot, tuple(sorted(skus)))


def retire(
    slot: SlotId, state: SlotState, granted: Collection[PciAddress], reason: str
) -> tuple[SlotFact, ...]:
    """Retire a free slot and withdraw its PCI functions, so that another slot can get them; return no facts if the slot
    is retired. Raises `Conflict` for a slot that is not free.
    """
    refuse_if(against_retiring(slot, state))
    if isinstance(state, Retired):
        return ()
    return SlotRetired(slot, reason), *grant(slot, granted, ())


def against_retiring(slot: SlotId, state: SlotState) -> list[Objection]:
    """Return the reason why the slot cannot be retired; an empty list if it can."""
    return [] if isinstance(state, Retired) else _against_changing(slot, state)


def reprovision(
    slot: SlotId,
    state: SlotState,
    previous: SlotNetwork | None,
    settings: NodeNetwork,
    taken: Collection[str],
    *,
    reason: str,
) -> SlotReprovisioned:
    """Give a free slot another MAC, the next of its candidates that is not in `taken`, and another IP address. Raises
    `Conflict` for a slot that is not free, and if all other candidates are taken.
    """
    refuse_if(against_reprovisioning(slot, state))
    assert previous is not None, "a free slot must have the network that its approval set"
    macs, addresses = candidate_macs(slot, settings.mac_pool), _addresses(slot, previous.subnet)
    mac = next((each for each in _after(macs, previous.mac_address) if each not in taken), None)
    if mac is None:
        raise no_mac_left(slot, settings.l2_domain, settings.mac_pool)
    address = next(_after(addresses, previous.private_ip))
    network = replace(previous, mac_address=mac, private_ip=address)
    return SlotReprovisioned(slot, reason, network, previous)


def _after(values: Sequence[Text], present: Text) -> Iterator[Text]:
    """Return the other values of a sequence, in the order in which they replace the present one: those that follow it,
    then those from the beginning of the sequence.
    """
    start = values.index(present) + 1 if present in values else 0
    return (each for each in (*values[start:], *values[:start]) if each != present)


def against_reprovisioning(slot: SlotId, state: SlotState) -> list[Objection]:
    """Return the reason why the slot cannot be reprovisioned; an empty list if it can. Not checked: whether every MAC
    derived for the slot is in use.
    """
    return _against_changing(slot, state)


def _against_changing(slot: SlotId, state: SlotState) -> list[Objection]:
    if isinstance(state, Free):
        return []
    holder = holder_of(state)
    advice = (
        "approve it first"
        if holder is None
        else f"allocation {holder} holds it; release the allocation first"
    )
    reason = f"slot {slot} is {slot_state_name(state)}, not free: {advice}"
    return [Objection("slot_not_free", reason)]


def _against_first_approval(slot: SlotId, state: SlotState, skus: Collection[SkuName]) -> list[Objection]:
    if not awaits_approval(state):
        reason = (
            f"slot {slot} is {slot_state_name(state)}, not awaiting approval; "
            "name SKUs if it is to be offered under other ones"
        )
        return [Objection("not_awaiting_approval", reason)]
    return [] if skus else [_no_fitting_sku(slot)]


def _no_fitting_sku(slot: SlotId) -> Objection:
    reason = f"slot {slot} can carry none of the SKUs that the catalogue offers; publish a SKU that fits its hardware"
    return Objection("no_fitting_sku", reason)


def change_skus(
    slot: SlotId, known: Collection[SkuName], skus: Collection[SkuName]
) -> tuple[SlotSkusChanged, ...]:
    """Offer an approved slot under `skus` instead of the `known` ones; return no facts if these are equal."""
    return () if set(known) == set(skus) else (SlotSkusChanged(slot, tuple(sorted(skus))),)


def against_skus(
    names: Sequence[SkuName], found: Mapping[SkuName, Entry], hardware: SlotHardware, offer: Offer
) -> list[Objection]:
    """Return every reason why a slot cannot be offered under the named SKUs. `found` contains those that exist."""
    return [
        each
        for index, name in enumerate(names)
        for each in _against_sku(f"/skus/{index}", name, found.get(name), hardware, offer)
    ]


def against_keeping(
    slot: SlotId, kept: Collection[SkuName], entries: Iterable[Entry], hardware: SlotHardware, offer: Offer
) -> list[Objection]:
    """Return every reason why a slot cannot stay offered under the SKUs `kept` when its present hardware is accepted.
    `entries` contains the SKUs of the catalogue, also those of `kept` that are retired: a slot can keep these.
    """
    unfit = [
        against_offering(name, sku, hardware, offer) for name, sku in skus_among(entries) if name in kept
    ]
    advice = f"name SKUs that fit the present hardware of slot {slot}"
    return [Objection("sku_does_not_fit", f"{reason}; {advice}") for reason in unfit if reason is not None]


def _against_sku(
    field: str, name: SkuName, entry: Entry | None, hardware: SlotHardware, offer: Offer
) -> list[Objection]:
    sku = specified_sku(entry)
    if entry is None or sku is None:
        return [unknown_entry("sku", name, field)]
    retired = [] if entry.retired is None else [retired_entry("sku", name, entry.retired, field)]
    unfit = against_offering(name, sku.content, hardware, offer)
    return [*retired, *([] if unfit is None else [Objection("sku_does_not_fit", unfit, field)])]


def approve_hardware(
    slot: SlotId,
    state: SlotState,
    approved: ApprovedHardware | None,
    drift: Iterable[OpenDrift],
    found: ApprovedHardware,
) -> tuple[SlotHardwareApproved, ...]:
    """Record `found`, the hardware that the node describes now, as the approved hardware of a slot; return no facts if
    a slot that is approved already has no drift of its hardware.
    """
    if awaits_approval(state) or approved is None or any(map(ends_at_approval, drift)):
        return (SlotHardwareApproved(slot, found),)
    return ()


def accepts_other_hardware(state: SlotState, given: Collection[SlotFact]) -> bool:
    """Return whether an approval makes the facts `given` for a slot that is approved already: they replace its approved
    hardware. This is possible for a free slot only, because an allocation that has the slot was placed for the hardware
    that was approved.
    """
    return bool(given) and isinstance(state, Free)


def keeps_skus(state: SlotState, given: Collection[SlotFact]) -> bool:
    """Return whether an approval that names no SKUs is possible and keeps those under which the slot is offered.
    `given` are the facts that accept its present hardware.
    """
    return isinstance(state, Retired) or accepts_other_hardware(state, given)


def against_approving(
    slot: SlotId,
    kept: Collection[SkuName],
    entries: Sequence[Entry],
    hardware: SlotHardware,
    offer: Offer,
) -> list[Objection]:
    """Return the reason why no approval of the slot is possible; an empty list if one is. `kept` are the SKUs that an
    approval keeps if it names none, and `entries` the SKUs of the catalogue, also those of `kept` that are retired.

    An approval in any state can name SKUs that fit. Not checked: whether a request names such SKUs, whether one that
    names none is possible in the state of the slot, and whether every MAC derived for the slot is in use.
    """
    offered = skus_among(each for each in entries if each.retired is None)
    if any(against_offering(name, sku, hardware, offer) is None for name, sku in offered):
        return []
    unfit = against_keeping(slot, kept, entries, hardware, offer)
    return [] if kept and not unfit else [*unfit, _no_fitting_sku(slot)]


def described(
    slot: SlotId,
    known: Described,
    found: Described,
) -> tuple[SlotDevicesDescribed, ...]:
    """Return the fact that records a slot's PCI functions and NUMA node as its node describes them; none if
    unchanged.
    """
    return () if known == found else (SlotDevicesDescribed(slot, *found),)


def grant(
    slot: SlotId, granted: Collection[PciAddress], devices: Collection[SlotDevice]
) -> tuple[SlotFact, ...]:
    """Grant the slot the PCI functions that its node describes; return no facts if the slot has exactly these."""
    wanted = tuple(sorted(each.address for each in devices))
    added = tuple(each for each in wanted if each not in granted)
    withdrawn = tuple(sorted(each for each in granted if each not in wanted))
    if not added and not withdrawn:
        return ()
    return (SlotDevicesGranted(slot, node_of(slot), wanted, added, withdrawn),)


def network_of(
    slot: SlotId, subnet: Ipv4Subnet, settings: NodeNetwork, taken: Collection[str] = ()
) -> SlotNetwork:
    """Return the network identity of a slot, with its first candidate MAC that is not in `taken`.

    Raises `Conflict` if all candidates are taken.
    """
    mac = next((each for each in candidate_macs(slot, settings.mac_pool) if each not in taken), None)
    if mac is None:
        raise no_mac_left(slot, settings.l2_domain, settings.mac_pool)
    return SlotNetwork(
        l2_domain=settings.l2_domain,
        mac_address=mac,
        private_ip=_addresses(slot, subnet)[0],
        subnet=subnet,
        gateway=Ipv4Address(str(ipaddress.IPv4Network(subnet)[1])),
        bridge=settings.bridge,
    )


def _addresses(slot: SlotId, subnet: Ipv4Subnet) -> tuple[Ipv4Address, ...]:
    """Return the addresses of a slot in its node's subnet: the first one for its approval, and others for when it is
    reprovisioned. No other slot of the node has one of them.
    """
    hosts, first = ipaddress.IPv4Network(subnet), FIRST_HOST + index_of(slot)
    found = range(first, hosts.num_addresses - 1, MAX_SLOTS)
    return tuple(Ipv4Address(str(hosts[each])) for each in found)


def claim(slot: SlotId, allocation: AllocationId, use: SlotUse | None) -> SlotFact:
    """Claim a free slot for an allocation; `use` is what the slot counts towards quotas from now on."""
    return SlotClaimed(slot, allocation, use)


def begin_release(slot: SlotId, state: SlotState, by: AllocationId) -> tuple[SlotFact, ...]:
    """Begin the release of a slot that the allocation `by` holds: its desired state becomes empty."""
    match state:
        case Claimed(by=holder):
            return (SlotReleasing(slot, by),) if holder == by else ()
        case Discovered() | Free() | Releasing() | Quarantined() | Retired():
            return ()
        case _:
            assert_never(state)


def quarantine(
    slot: SlotId, state: SlotState, by: AllocationId, leftovers: tuple[str, ...]
) -> tuple[SlotFact, ...]:
    """Quarantine a slot because its node still finds remains of the slice."""
    if _awaiting_proof_for(state) != by:
        return ()
    named = "; ".join(leftovers[:_NAMED]) + ("; and more" if len(leftovers) > _NAMED else "")
    counted = f"{len(leftovers)} leftover{'s' if len(leftovers) != 1 else ''}"
    message = f"node {node_of(slot)} still finds {counted} of the slice: {named}"
    reason = Reason("absence_not_proved", message)
    return (SlotQuarantined(slot, by, reason, leftovers),)


def quarantine_overdue(
    slot: SlotId, state: SlotState, by: AllocationId, reason: Reason
) -> tuple[SlotFact, ...]:
    """Quarantine a slot that its node has not proved empty in time, for the given reason; return no facts if it is
    quarantined already.
    """
    match state:
        case Releasing(by=holder) if holder == by:
            return (SlotQuarantined(slot, by, reason, ()),)
        case _:
            return ()


def free(
    slot: SlotId, state: SlotState, by: AllocationId, absent: tuple[str, ...], use: SlotUse | None = None
) -> tuple[SlotFact, ...]:
    """Free a slot because its node proved it empty; `absent` lists the kinds of objects that the node did not find, and
    `use` is what the slot counts towards quotas until now.
    """
    return (SlotReleased(slot, by, absent, use),) if _awaiting_proof_for(state) == by else ()


def force_release_slot(
    slot: SlotId, state: SlotState, reason: str, leftovers: tuple[str, ...], use: SlotUse | None = None
) -> SlotForceReleased:
    """Force-release a slot that is not proved empty (ALC-11). `use` is what it counts towards quotas until now. Raises
    `Conflict` unless it is releasing or quarantined.
    """
    return SlotForceReleased(slot, holder_awaiting_proof(slot, state), reason, leftovers, use)


def holder_awaiting_proof(slot: SlotId, state: SlotState) -> AllocationId:
    """Return the allocation for which the slot awaits the proof that it is empty. Raises `Conflict` if there is
    none.
    """
    refuse_if(against_force_release(slot, state))
    holder = _awaiting_proof_for(state)
    assert holder is not None, "a slot that does not await the proof must have been refused"
    return holder


def against_force_release(slot: SlotId, state: SlotState) -> list[Objection]:
    """Return the reason why the slot cannot be force-released; an empty list if it can."""
    if _awaiting_proof_for(state) is not None:
        return []
    reason = f"slot {slot} is {slot_state_name(state)} and does not await the proof that it is empty"
    return [Objection("not_awaiting_proof", reason)]


def _awaiting_proof_for(state: SlotState) -> AllocationId | None:
    match state:
        case Releasing(by=holder) | Quarantined(by=holder):
            return holder
        case Discovered() | Free() | Claimed() | Retired():
            return None
        case _:
            assert_never(state)
