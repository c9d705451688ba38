"""The kinds of drift: all that can be otherwise on a node than it is wanted, and what is done about each (NOD-4 to -9).

The catalogue is closed, as that of the tasks is: a node names no other kind, `docs/drift.md` is made of it, and the
tests make each of them by another program's hand. The `scope` of a kind is the widest that its evidence may speak for:
a slot's tap says nothing of the node, the node's uplink speaks for every slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from pydantic import Field

from tasks.fields import IngressId, Moment, Sentence, Wire

Scope = Literal["node", "slot", "exposure"]
Policy = Literal["repair", "report", "block"]
Source = Literal["ovsdb", "openflow", "rtnetlink", "nfnetlink", "libvirt", "inotify", "pidfd", "survey"]

DriftKind = Literal[
    "host.unreadable", "bridge.absent", "bridge.changed", "bridge.foreign_flows",
    "gateway.address", "gateway.forwarding", "gateway.rules", "gateway.dhcp", "uplink.lost", "device.absent",
    "link.absent", "link.changed", "lease.unreserved", "lease.rival", "lease.foreign", "lease.expired",
    "port.absent", "port.changed", "port.flows", "port.meter", "rules.changed", "mapping.changed", "mapping.foreign",
    "rules.rival",
    "machine.absent", "machine.paused", "machine.changed", "machine.unplugged", "machine.rival",
    "machine.devices", "machine.pins", "machine.seed",
    "slot.device", "slot.ungranted", "slot.occupied", "slot.absent",
]  # fmt: skip


class Evidence(Wire):
    """One thing that is otherwise than it is wanted."""

    kind: str = Field(pattern=r"^[a-z_]{1,32}\.[a-z_]{1,32}$")
    """What kind of drift it is. A reader takes any: a node may be newer than its control plane."""
    wanted: Sentence
    """What should be."""
    found: Sentence
    """What is, or was."""
    ingress_id: IngressId | None = None
    """The one way in from outside that it is about, null where it is about more."""


class Sighting(Evidence):
    """The same, of a moment."""

    since: Moment
    """When the node noticed it."""


class DriftSeen(Sighting):
    """The same, of a place on a node."""

    slot: int | None = Field(ge=0, le=63)
    """The slot that it is about, null where it is about the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftType:
    """One entry of the catalogue."""

    kind: DriftKind
    scope: Scope
    """Whom it speaks for: the node with all its slots, one slot, or one of its ways in from outside."""
    serves: str
    """The requirement, and which of its signals."""
    means: str
    """What is otherwise than it was wanted."""
    evidence: str
    """What `wanted` and `found` say."""
    source: Source
    """What tells the node at once; the survey finds it at the latest."""
    policy: Policy
    """`repair`: made good at once. `report`: reported only. `block`: reported, since the node cannot mend it."""
    restarts: bool = False
    """Whether making it good starts the slice's guest anew."""

    @property
    def blocks(self) -> bool:
        """Whether nothing is placed on its scope as long as it lasts."""
        return self.policy != "report"

    def is_of(self, slot: int | None) -> bool:
        """Whether it may be told of this place: what speaks for one slot never speaks for the node, nor the reverse."""
        return (self.scope == "node") == (slot is None)


TYPES: Final = (
    DriftType(
        kind="host.unreadable",
        scope="node",
        serves="NOD-8: acts only on a complete snapshot",
        means="a daemon of the host does not answer, so nothing can be compared",
        evidence="that it answers; what was asked, and how it failed",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="bridge.absent",
        scope="node",
        serves="NOD-6: expected bridge present",
        means="the bridge of the slices was deleted",
        evidence="the bridge; that there is none",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="bridge.changed",
        scope="node",
        serves="NOD-6: expected bridge present",
        means="the bridge forwards by itself, has another datapath, address or set of protocols, or has a mirror, a "
        "controller or a collector of samples",
        evidence="its settings; the strangers, by their names",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="bridge.foreign_flows",
        scope="node",
        serves="NOD-3: east-west denied by default",
        means="somebody set flows or meters on the bridge that belong to no slot",
        evidence="flows and meters of slots alone; the cookies and numbers of the others",
        source="openflow",
        policy="repair",
    ),
    DriftType(
        kind="gateway.address",
        scope="node",
        serves="NOD-6: host health",
        means="the bridge's own link has lost the gateway's address, has another, or is down",
        evidence="the addresses and the state of the link",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.forwarding",
        scope="node",
        serves="NOD-6: IP forwarding on",
        means="the host does not forward IPv4 any more, or not what comes from the bridge or by the uplink",
        evidence="forwarding on; for which links it is off, or for all",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.rules",
        scope="node",
        serves="NOD-6: MASQUERADE rule for the subnet present",
        means="a rule or chain of the node is gone, or stands otherwise, or a stranger's stands between them",
        evidence="how many rules there are; which are missing and which are strange, by their chains",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.dhcp",
        scope="node",
        serves="NOD-6: host health",
        means="the DHCP server is gone, or is not the one that was started for this network",
        evidence="the network that is served; that it is not",
        source="pidfd",
        policy="repair",
    ),
    DriftType(
        kind="rules.rival",
        scope="node",
        serves="NOD-7, signal 4: NAT and firewall as exposed",
        means="a rule of another table sends packets into the slices' network, or takes those that come to a slice; it "
        "is somebody's, and left to him",
        evidence="no such rule; its table and chain, and where it sends to",
        source="nfnetlink",
        policy="report",
    ),
    DriftType(
        kind="uplink.lost",
        scope="node",
        serves="NOD-6: default-route uplink",
        means="no default route leaves by the uplink, or the uplink has no carrier",
        evidence="the uplink; the links that have a carrier by which default routes leave",
        source="rtnetlink",
        policy="block",
    ),
    DriftType(
        kind="device.absent",
        scope="node",
        serves="NOD-6: BF3 tmfifo present",
        means="a device that the settings name is not there",
        evidence="the device; that it is not there",
        source="rtnetlink",
        policy="block",
    ),
    DriftType(
        kind="link.absent",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="the slice's tap was deleted, or its virtual function has no representor any more",
        evidence="the link; that there is no such link",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="link.changed",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="the link is down, has another MTU, owner or name, speaks for the host, is another's, or is a port of "
        "another bridge as well",
        evidence="the link's settings",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="lease.unreserved",
        scope="slot",
        serves="NOD-7, signal 3: lease as intended",
        means="the DHCP server does not have the slot's reservation: its file was edited or removed",
        evidence="the reservation; that there is none",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.rival",
        scope="slot",
        serves="NOD-7, signal 3: lease as intended",
        means="another reservation holds the slot's name, card or address",
        evidence="the reservation; the other one",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.foreign",
        scope="slot",
        serves="NOD-4: a foreign lease is drift and never frees or moves an address",
        means="the slot's card has a lease of another address, or another card has one of the slot's",
        evidence="whose the address is; the lease",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.expired",
        scope="slot",
        serves="NOD-4: an expired lease is drift and never frees or moves an address",
        means="the guest of a slice has no lease in force: it did not renew it, or the server lost it; the address stays its own",
        evidence="a lease in force; that it is over",
        source="survey",
        policy="report",
    ),
    DriftType(
        kind="port.absent",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="the slice's port was taken off the switch",
        evidence="the port; that there is none",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="port.changed",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="the slice's port was moved to another bridge, has another number or a VLAN, or leads to a device "
        "that is no more",
        evidence="the port's bridge, number and VLANs",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="port.flows",
        scope="slot",
        serves="NOD-7, signal 2: MAC as approved",
        means="flows that guard the slice's port were deleted, or others were added under its name",
        evidence="how many flows there are; how many are missing and how many are strange",
        source="openflow",
        policy="repair",
    ),
    DriftType(
        kind="port.meter",
        scope="slot",
        serves="NOD-3: QoS per vNIC",
        means="a meter of the slice was changed or added, or deleted, and its flows with it",
        evidence="the meters with their rates; those that there are",
        # The flow monitor tells nothing of meters, but of flows that went with a deleted one.
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="rules.changed",
        scope="slot",
        serves="NOD-7, signal 4: NAT and firewall as exposed",
        means="a rule of the slot is gone or stands twice, or a stranger's bears its name",
        evidence="how many rules there are; which are missing and which are strange, by their chains",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="mapping.changed",
        scope="exposure",
        serves="NOD-7, signals 4 and 7: NAT as exposed, endpoints reachable as exposed",
        means="the rules of one ingress are gone, or stand otherwise: nobody comes in by it, or others than may",
        evidence="how many rules there are; which are missing and which are strange, by their chains",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="mapping.foreign",
        scope="slot",
        serves="ING-1: stale mappings are drift",
        means="there are rules of an ingress that the slot does not have, or connections that came in by such",
        evidence="what is ordered, and nothing else; whose rules there are, or how many connections",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="machine.absent",
        scope="slot",
        serves="NOD-7, signal 6: readiness reached before active",
        means="the slice's machine does not run: it was destroyed, or its guest or its process ended",
        evidence="the machine, running; what there is in its place",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.paused",
        scope="slot",
        serves="NOD-7, signal 6: readiness reached before active",
        means="somebody paused the slice's machine",
        evidence="the machine, running; its state",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.changed",
        scope="slot",
        serves="NOD-7, signal 2: MAC as approved",
        means="the machine under the slot's name is another than was ordered: its card, size, image or owner, or what it "
        "boots from; or its card's link is down, its display listens, or it has a device beside those that are written for it",
        evidence="the machine as ordered; as it is",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.unplugged",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="the tap was deleted under the slice's machine, which stays cut off even when it is made anew",
        evidence="the machine; that nobody holds its tap",
        source="rtnetlink",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.rival",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="another guest of this agent's uses the slot's tap or card, or a process outlived its machine",
        evidence="the slot's own machine alone; the other one",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.devices",
        scope="slot",
        serves="NOD-7, signal 5: fabric device on the right VM",
        means="the slice's machine has other PCI devices of its host than were ordered, or lacks one",
        evidence="the devices as ordered; those that it has",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.pins",
        scope="slot",
        serves="NOD-12: NUMA and IRQ locality",
        means="the machine's processors run on others of the host's than the slot's",
        evidence="the host's CPUs, one for each of the machine's; those that they may run on",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.seed",
        scope="slot",
        serves="NOD-8: repair touches only what differs",
        means="what the guest is told at its boot, or which devices it has, is gone from the slot's folder",
        evidence="the file; that there is none",
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="slot.device",
        scope="slot",
        serves="NOD-7, signal 5: fabric device on the right VM",
        means="a PCI device that the settings give to the slot is not there or cannot be read: it failed, bears "
        "another address, or is a virtual function without a representor",
        evidence="the device; that there is none",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="slot.ungranted",
        scope="slot",
        serves="ALC-2, LED-3: a PCI function has one holder, and a change of topology is an explicit act",
        means="the node's settings give the slot other PCI devices than it was approved with; approving it again lets it have them",
        evidence="the devices that it was approved with; those that the node describes",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="slot.occupied",
        scope="slot",
        serves="ALC-8, ALC-11: nothing runs in a slot that is off or empty",
        means="something of a slice was found in a slot that was proved off or empty",
        evidence="nothing that runs or can be reached; what was found",
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="slot.absent",
        scope="slot",
        serves="ALC-2: a change of topology is an explicit act",
        means="the node's settings do not have the slot any more",
        evidence="the slot; that the node describes none",
        source="survey",
        policy="block",
    ),
)
"""The catalogue, in the order in which people read it: the node, then a slot from its link to its machine."""

CATALOGUE: Final[Mapping[str, DriftType]] = MappingProxyType({type_.kind: type_ for type_ in TYPES})
"""Every type by its kind; what a newer node tells may be of none."""
KINDS: Final[tuple[DriftKind, ...]] = get_args(DriftKind)
