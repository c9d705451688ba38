"""The catalogue of drift: every difference between desired and observed state of a node, and its policy (NOD-4 to -9).

The catalogue is closed, like that of the tasks: a node reports no other kind, `docs/drift.md` is generated from it, and
the tests produce each kind with another program. The `scope` of a kind limits its evidence: the tap of a slot is
evidence about that slot only, the node's uplink is evidence about every slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from pydantic import Field

from tasks.fields import IngressId, Moment, Sentence, Wire

Scope = Literal["node", "slot", "ingress"]
Policy = Literal["repair", "report", "block"]
Source = Literal[
    "ovsdb", "openflow", "rtnetlink", "nfnetlink", "xfrm", "libvirt", "inotify", "pidfd", "survey", "probe"
]

DriftKind = Literal[
    "host.unreadable", "bridge.absent", "bridge.changed", "bridge.foreign_flows", "bridge.foreign_port",
    "gateway.address", "gateway.forwarding", "gateway.rules", "gateway.dhcp", "uplink.lost", "device.absent",
    "link.absent", "link.changed", "lease.unreserved", "lease.conflicting", "lease.foreign", "lease.expired",
    "port.absent", "port.changed", "port.flows", "port.meter", "rules.changed", "ingress.changed", "ingress.foreign",
    "foreign.rules", "foreign.xfrm_policy", "foreign.mirror", "foreign.dhcp_server", "foreign.switch_manager",
    "machine.absent", "machine.paused", "machine.frozen", "machine.changed", "machine.unplugged", "machine.duplicate",
    "machine.devices", "machine.pins", "machine.seed",
    "slot.device", "slot.ungranted", "slot.occupied", "slot.absent",
    "gateway.link", "link.diverted",
    "gateway.route", "gateway.neighbour", "uplink.unresponsive", "uplink.changed",
    "foreign.route", "foreign.policy_rule", "foreign.upper_link", "foreign.uplink_qdisc",
    "slice.unreachable",
]  # fmt: skip


class Evidence(Wire):
    """One difference between desired and observed state."""

    kind: str = Field(pattern=r"^[a-z_]{1,32}\.[a-z_]{1,32}$")
    """Kind of drift. A reader accepts any kind, because a node may be newer than its control plane."""
    desired: Sentence
    """Desired state."""
    observed: Sentence
    """Observed state."""
    ingress_id: IngressId | None = None
    """The ingress rule that it concerns; null if it concerns more than one rule or none."""


class TimedEvidence(Evidence):
    """Evidence of drift with the time of its detection."""

    since: Moment
    """When the node detected it."""


class LocatedEvidence(TimedEvidence):
    """Evidence of drift with its time and its place on a node."""

    slot: int | None = Field(ge=0, le=63)
    """The slot that it concerns; null if it concerns the whole node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftType:
    """One kind of drift: its meaning and its policy."""

    kind: DriftKind
    scope: Scope
    """What the drift affects: the node with all its slots, one slot, or one of its ingress rules."""
    serves: str
    """Id of the requirement, and the signal in it."""
    means: str
    """Description of the difference."""
    evidence: str
    """Contents of `desired` and `observed`."""
    source: Source
    """Source that notifies the node at once; the survey detects the drift at the latest."""
    policy: Policy
    """`repair`: repaired at once. `report`: reported only. `block`: reported, because the node cannot repair it."""
    restarts: bool = False
    """Whether the repair restarts the slice's guest."""

    @property
    def blocks(self) -> bool:
        """Whether placement avoids its scope while the drift lasts."""
        return self.policy != "report"

    def is_of(self, slot: int | None) -> bool:
        """Return whether the kind can apply to this slot (None: to the node). Slot drift never applies to the node, and
        node drift never to a slot.
        """
        return (self.scope == "node") == (slot is None)


TYPES: Final = (
    DriftType(
        kind="host.unreadable",
        scope="node",
        serves="NOD-8: acts only on a complete snapshot",
        means="a daemon of the host does not respond, so desired and observed state cannot be compared",
        evidence="that it responds; the failed request and its error",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="bridge.absent",
        scope="node",
        serves="NOD-6: expected bridge present",
        means="the bridge of the slices was deleted",
        evidence="the bridge; that it does not exist",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="bridge.changed",
        scope="node",
        serves="NOD-6: expected bridge present",
        means="the bridge forwards by itself, has no datapath, or another datapath type, address or set of protocols, or has a mirror, a "
        "controller or a collector of samples; or any other setting of it or of its own port differs (spanning tree, multicast "
        "snooping, policing, QoS), or its switch drops fragments or blocks its own port",
        evidence="its settings; those that differ, and the foreign mirrors, controllers and collectors, by name",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="bridge.foreign_flows",
        scope="node",
        serves="NOD-3: east-west denied by default",
        means="another program set flows or meters on the bridge that belong to no slot",
        evidence="only flows and meters of slots; the cookies and numbers of the others",
        source="openflow",
        policy="repair",
    ),
    DriftType(
        kind="bridge.foreign_port",
        scope="node",
        serves="NOD-3: east-west denied by default",
        means="the bridge has a port that is not a slot's: an internal port, a patch, a tunnel or a network card. The bridge is "
        "managed by the agent alone, and such a port bypasses the rules that isolate slots, so it is removed",
        evidence="only ports of slots; the names of the others",
        source="ovsdb",
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
        means="the host no longer forwards IPv4, or does not forward what arrives from the bridge or at the uplink",
        evidence="forwarding on; for which links it is off, or for all",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.rules",
        scope="node",
        serves="NOD-6: MASQUERADE rule for the subnet present",
        means="the node's own tables of nftables differ from their declaration: a rule is missing, in another place or "
        "foreign, a chain has another hook, priority, device or policy, a table is dormant, or there is a set, a map or "
        "another object",
        evidence="the number of rules; which are missing and which are foreign, by their chains, and what else differs",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.dhcp",
        scope="node",
        serves="NOD-6: host health",
        means="the DHCP server has ended, is stopped by a signal, or is not the one that was started for this network; or a file "
        "among its reservations does not belong to a slot, or their folder has another mode",
        evidence="the network that is served; that it is not, or the files",
        source="pidfd",
        policy="repair",
    ),
    DriftType(
        kind="gateway.link",
        scope="node",
        serves="NOD-6: host health",
        means="the bridge's own link has another MAC or MTU, answers no ARP request, or has additions of another program: "
        "a queueing discipline, a filter, an XDP program, a setting that drops or leaks traffic",
        evidence="the settings of the link; the differing settings and the additions, by their names",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.route",
        scope="node",
        serves="NOD-6: host health",
        means="a route that the kernel makes for the gateway's address was deleted or replaced",
        evidence="the routes to the subnet and to the gateway's address; those that are missing",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.neighbour",
        scope="node",
        serves="NOD-6: host health",
        means="a static neighbour entry was set on the bridge, so the host does not resolve the MACs of slices by ARP",
        evidence="only learned neighbours; the static entries",
        source="rtnetlink",
        policy="repair",
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
        kind="uplink.unresponsive",
        scope="node",
        serves="NOD-6: default-route uplink",
        means="the gateway of the default route over the uplink does not answer the ARP requests that the kernel sends "
        "for the agent",
        evidence="a gateway that answers; its address",
        # The kernel sends no event until an entry fails, and entries of booting slices fail all the time.
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="uplink.changed",
        scope="node",
        serves="NOD-6: default-route uplink",
        means="the uplink has another MAC or MTU than when the agent started, or its ARP is off; a restart of the agent "
        "accepts the change",
        evidence="the uplink as it was; as it is",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.route",
        scope="node",
        serves="NOD-6: host health",
        means="a route of another program sends packets for the slices' subnet elsewhere, or drops them",
        evidence="only routes over the bridge; the others, with their links and gateways",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.policy_rule",
        scope="node",
        serves="NOD-6: host health",
        means="a policy rule of another program drops packets from or to slices or routes them by a table that sends them "
        "elsewhere, or the rule for the table local or main is missing",
        evidence="routing by the tables local and main; the rules, with their priorities",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.upper_link",
        scope="node",
        serves="NOD-6: host health",
        means="a link of another program (macvlan, VLAN) is stacked on the bridge's own link",
        evidence="no such link; its kind and name",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.uplink_qdisc",
        scope="node",
        serves="NOD-6: default-route uplink",
        means="a foreign queueing discipline, filter or XDP program on the uplink may delay, drop or redirect packets",
        evidence="none of these; their kinds and what they do",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="device.absent",
        scope="node",
        serves="NOD-6: BF3 tmfifo present",
        means="a device named in the settings does not exist",
        evidence="the device; that it does not exist",
        source="rtnetlink",
        policy="block",
    ),
    DriftType(
        kind="foreign.dhcp_server",
        scope="node",
        serves="NOD-7, signal 3: lease as intended",
        means="another program listens for DHCP requests on the slices' bridge and may answer them; the agent does not stop it",
        evidence="one server; the other, by its process",
        source="survey",
        policy="report",
    ),
    DriftType(
        kind="foreign.switch_manager",
        scope="node",
        serves="NOD-3: east-west denied by default",
        means="Open vSwitch accepts database changes from a manager, over the network or another socket; the agent keeps "
        "the manager, and reverts its changes to the bridge",
        evidence="no manager; the managers, by their targets",
        source="ovsdb",
        policy="report",
    ),
    DriftType(
        kind="foreign.rules",
        scope="node",
        serves="NOD-7, signal 4: NAT and firewall as exposed",
        means="a rule of another table, or a chain's policy, can match packets of slices at its hook and drops, rejects, "
        "queues, translates, diverts, copies, rewrites or does not track them, or translates a destination into their network",
        evidence="no such rule; its table, chain, hook and handle or number, and what it does",
        source="nfnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.xfrm_policy",
        scope="node",
        serves="NOD-7, signal 7: endpoints reachable as exposed",
        means="an IPsec policy of another program drops or transforms packets from or to the slices' network",
        evidence="no such policy; what it does, its networks and its direction",
        source="xfrm",
        policy="report",
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
        means="the link is down, has another MTU, owner or name, answers ARP or IPv6 for the host, is foreign, or is a port of "
        "another bridge as well; or another program added an address or a queueing discipline, or changed its MAC",
        evidence="the link's settings",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="link.diverted",
        scope="slot",
        serves="NOD-3: east-west denied by default",
        means="frames of the slice's link can leave or enter past the switch: a filter mirrors or redirects them, a BPF "
        "or XDP program handles them, or a macvlan, macvtap, ipvlan or VLAN link is stacked on it, which is deleted",
        evidence="the link's settings; those and what diverts its frames, by its target or name",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="lease.unreserved",
        scope="slot",
        serves="NOD-7, signal 3: lease as intended",
        means="the DHCP server does not have the slot's reservation: its file was edited or removed, or has another mode or "
        "owner, or is not a file",
        evidence="the reservation; that it does not exist, or what differs",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.conflicting",
        scope="slot",
        serves="NOD-7, signal 3: lease as intended",
        means="another reservation has the slot's name, MAC address or IP address",
        evidence="the reservation; the other one",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.foreign",
        scope="slot",
        serves="NOD-4: a foreign lease is drift and never frees or moves an address",
        means="the slot's MAC address has a lease of another IP address, or another MAC address has a lease of the slot's IP address",
        evidence="the MAC address that the IP address is reserved for; the lease",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.expired",
        scope="slot",
        serves="NOD-4: an expired lease is drift and never frees or moves an address",
        means="the guest of a slice has no valid lease: the guest did not renew it, or the server lost it; the address stays reserved",
        evidence="a valid lease; that it has ended",
        source="survey",
        policy="report",
    ),
    DriftType(
        kind="port.absent",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="the slice's port was removed from the switch",
        evidence="the port; that it does not exist",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="port.changed",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="the slice's port was moved to another bridge, has another number or a VLAN, or leads to a device "
        "that no longer exists; or any other setting of it differs (policing, QoS, a bond), or the switch blocks it",
        evidence="the port's bridge, number and VLANs, and settings that differ",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="port.flows",
        scope="slot",
        serves="NOD-7, signal 2: MAC as approved",
        means="flows that guard the slice's port were deleted, or foreign flows were added with its cookie",
        evidence="the number of flows; how many are missing and how many are foreign",
        source="openflow",
        policy="repair",
    ),
    DriftType(
        kind="port.meter",
        scope="slot",
        serves="NOD-3: QoS per vNIC",
        means="a meter of the slice was changed or added, or deleted together with its flows",
        evidence="the meters with their rates; the meters found",
        # The flow monitor reports no meters, only flows that were deleted together with one.
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="rules.changed",
        scope="slot",
        serves="NOD-7, signal 4: NAT and firewall as exposed",
        means="a rule of the slot is missing or duplicated, or a foreign rule has its name",
        evidence="the number of rules; which are missing and which are foreign, by their chains",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="ingress.changed",
        scope="ingress",
        serves="NOD-7, signals 4 and 7: NAT as exposed, endpoints reachable as exposed",
        means="the rules of one ingress are missing or changed, so that permitted sources are blocked or others are let in",
        evidence="the number of rules; which are missing and which are foreign, by their chains",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="ingress.foreign",
        scope="slot",
        serves="ING-1: stale mappings are drift",
        means="rules of an ingress exist that the slot does not have, or connections that were established through such rules",
        evidence="only the ordered rules; the ingresses of the other rules, or the number of connections",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="machine.absent",
        scope="slot",
        serves="NOD-7, signal 6: readiness reached before active",
        means="the slice's machine does not run: it was destroyed, or its guest or its process ended",
        evidence="the machine, running; its actual state",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.paused",
        scope="slot",
        serves="NOD-7, signal 6: readiness reached before active",
        means="another program paused the slice's machine",
        evidence="the machine, running; its state",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.frozen",
        scope="slot",
        serves="NOD-7, signal 6: readiness reached before active",
        means="a signal stopped the process of the slice's machine, which libvirt still reports as running",
        evidence="the machine, running; the process, stopped",
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="machine.changed",
        scope="slot",
        serves="NOD-7, signal 2: MAC as approved",
        means="the machine under the slot's name differs from the order: its network card, size, image, owner or boot "
        "source; or its card's link is down, its display accepts connections, it is throttled, or it has an additional "
        "device; or its process has an internet socket, a card or another device that libvirt does not show",
        evidence="the machine as ordered; as it is",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.unplugged",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="the tap was deleted while the slice's machine used it; the machine stays disconnected even if the tap is recreated",
        evidence="the machine; that no process holds its tap",
        source="rtnetlink",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.duplicate",
        scope="slot",
        serves="NOD-7, signal 1: vNIC on the right bridge or VF",
        means="another guest of this agent uses the slot's tap or card, or a process outlived its machine",
        evidence="only the slot's own machine; the other one",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.devices",
        scope="slot",
        serves="NOD-7, signal 5: fabric device on the right VM",
        means="the slice's machine has PCI devices that were not ordered, or lacks an ordered one",
        evidence="the devices as ordered; the devices that it has",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.pins",
        scope="slot",
        serves="NOD-12: NUMA and IRQ locality",
        means="the machine's virtual CPUs are not pinned to the host CPUs of the slot",
        evidence="one host CPU for each virtual CPU; the CPUs that they may run on",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.seed",
        scope="slot",
        serves="NOD-8: repair touches only what differs",
        means="the boot data or the device list of the guest is missing in the slot's folder",
        evidence="the file; that it does not exist",
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="slot.device",
        scope="slot",
        serves="NOD-7, signal 5: fabric device on the right VM",
        means="a PCI device that the settings assign to the slot does not exist or cannot be read: it failed, has "
        "another address, or is a virtual function without a representor",
        evidence="the device; that it does not exist",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="slot.ungranted",
        scope="slot",
        serves="ALC-2, LED-3: a PCI function has one holder, and a change of topology is an explicit act",
        means="the node's settings assign other PCI devices to the slot than it was approved with; approving it again grants them",
        evidence="the devices that it was approved with; those that the node describes",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="slot.occupied",
        scope="slot",
        serves="ALC-8, ALC-11: nothing runs in a slot that is off or empty",
        means="remains of a slice were found in a slot that had been proved stopped or empty",
        evidence="nothing that runs or can be reached; what was found",
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="slot.absent",
        scope="slot",
        serves="ALC-2: a change of topology is an explicit act",
        means="the node's settings no longer contain the slot",
        evidence="the slot; that the node does not describe it",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="foreign.mirror",
        scope="slot",
        serves="NOD-3: east-west denied by default",
        means="a rule of another table copies or sends frames to the slice's link, or this slice's frames to another link",
        evidence="no such rule; its table, chain, hook and handle, and the target of the frames",
        source="nfnetlink",
        policy="block",
    ),
    DriftType(
        kind="slice.unreachable",
        scope="slot",
        serves="NOD-7, signal 7: endpoints reachable as exposed",
        means="the slice does not answer probes: from the gateway at its readiness port, or, if that answers, from "
        "the uplink's side of the packet filter at one of its ingresses; anything on the path can be the cause, "
        "including the tenant",
        evidence="an answer, and on which path; what was found, with the hop that failed: gateway, address, port or ingress",
        source="probe",
        policy="report",
    ),
)
"""All drift types, in the order of the documentation: the node, then a slot from its link to its machine."""

CATALOGUE: Final[Mapping[str, DriftType]] = MappingProxyType({type_.kind: type_ for type_ in TYPES})
"""Drift types by kind; a newer node may report kinds that are missing here."""
KINDS: Final[tuple[DriftKind, ...]] = get_args(DriftKind)
