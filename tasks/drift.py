"""The catalogue of drift: every kind of difference between the desired and the observed state of a node, with its
policy (NOD-4 to NOD-9).

The catalogue is closed, like that of the tasks: a node reports no other kind, `docs/drift.md` is generated from it, and
the tests produce each kind by changing a node without its agent. The `scope` of a kind limits its effect: drift of a
slot's tap affects that slot only, drift of the node's uplink affects every slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from pydantic import Field

from tasks.fields import IngressId, Moment, Sentence, Whole, Wire

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
    "slot.device", "slot.ungranted", "slot.changed", "slot.occupied", "slot.absent",
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
    """Description of the desired state."""
    observed: Sentence
    """Description of the observed state."""
    ingress_id: IngressId | None = None
    """The ingress rule that the difference concerns; null if it concerns more than one rule or none."""


class TimedEvidence(Evidence):
    """Evidence of drift with the time of its detection."""

    since: Moment
    """When the node detected the difference."""


class LocatedEvidence(TimedEvidence):
    """Evidence of drift with the time of its detection and the affected slot, if it concerns one slot."""

    slot: Whole | None = Field(ge=0, le=63)
    """Index of the slot that the difference concerns; null if it concerns the whole node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftType:
    """One kind of drift: its meaning and its policy."""

    kind: DriftKind
    scope: Scope
    """What the drift affects: the node with all its slots, one slot, or one of its ingress rules."""
    serves: str
    """Id of the requirement because of which the node detects this kind of drift, and the part of the requirement that
    is concerned."""
    means: str
    """Description of the difference between the desired and the observed state."""
    evidence: str
    """What the fields `desired` and `observed` of the evidence contain."""
    source: Source
    """Source of the notification by which the node detects the drift at once. Without a notification, the next survey
    detects it."""
    policy: Policy
    """`repair`: the node repairs the drift at once. `report`: the node reports the drift, which does not affect
    placement. `block`: the node reports the drift, because it cannot repair it, and placement avoids the affected node
    or slot."""
    restarts: bool = False
    """Whether the repair restarts the slice's guest."""
    compares_observed: bool = False
    """Whether a different observed state counts as different drift. False for most kinds: the description of the
    observed state may differ from survey to survey while the drift stays the same.
    """
    ends_at_approval: bool = False
    """Whether the drift ends when an admin approves the slot, because the approval accepts the observed state."""

    @property
    def blocks(self) -> bool:
        """Whether placement avoids the affected node or slot while drift of this kind is open."""
        return self.policy != "report"

    def is_of(self, slot: Whole | None) -> bool:
        """Return whether this kind of drift can apply to the slot, or to the node if `slot` is None. Drift with the
        scope `node` applies only to the node, all other drift only to a slot.
        """
        return (self.scope == "node") == (slot is None)


TYPES: Final = (
    DriftType(
        kind="host.unreadable",
        scope="node",
        serves="requirement NOD-8: the agent repairs a host only after it has read its complete state",
        means="a daemon of the host does not respond, so desired and observed state cannot be compared",
        evidence="desired: a response of the daemon; observed: the failed request and its error",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="bridge.absent",
        scope="node",
        serves="requirement NOD-6: expected bridge present",
        means="the bridge of the slices was deleted",
        evidence="desired: the bridge; observed: that the bridge does not exist",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="bridge.changed",
        scope="node",
        serves="requirement NOD-6: expected bridge present",
        means="the bridge forwards by itself, has no datapath, or another datapath type, address or set of protocols, or has a mirror, a "
        "controller or a collector of samples; or any other setting of it or of its own port differs (spanning tree, multicast "
        "snooping, policing, QoS), or its switch drops fragments or blocks its own port",
        evidence="desired: the bridge's settings; observed: the settings that differ, and the foreign mirrors, "
        "controllers and collectors, by name",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="bridge.foreign_flows",
        scope="node",
        serves="requirement NOD-3: traffic between slices is denied by default",
        means="another program set flows or meters on the bridge that belong to no slot",
        evidence="desired: no flows or meters except those of slots; observed: the cookies of the foreign flows and "
        "the numbers of the foreign meters",
        source="openflow",
        policy="repair",
    ),
    DriftType(
        kind="bridge.foreign_port",
        scope="node",
        serves="requirement NOD-3: traffic between slices is denied by default",
        means="the bridge has a port that is not a slot's: an internal port, a patch, a tunnel or a network card. The bridge is "
        "managed by the agent alone, and such a port bypasses the rules that isolate slots, so it is removed",
        evidence="desired: no ports except those of slots; observed: the names of the foreign ports",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="gateway.address",
        scope="node",
        serves="requirement NOD-6: host health",
        means="the bridge's own link has lost the gateway's address, has another, or is down",
        evidence="desired: the addresses and state of the bridge's link; observed: its actual addresses and state",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.forwarding",
        scope="node",
        serves="requirement NOD-6: IP forwarding on",
        means="the host no longer forwards IPv4, or does not forward packets that arrive from the bridge or at the uplink",
        evidence="desired: IPv4 forwarding on; observed: the links for which forwarding is off, or that it is off "
        "for all",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.rules",
        scope="node",
        serves="requirement NOD-6: the MASQUERADE rule for the subnet is present",
        means="the node's own tables of nftables differ from their declaration: a rule is missing, in another place or "
        "foreign, a chain has another hook, priority, device or policy, a table is dormant, or there is a set, a map or "
        "another object",
        evidence="desired: the number of nftables rules; observed: the missing and the foreign rules, by their "
        "chains, and other differences",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.dhcp",
        scope="node",
        serves="requirement NOD-6: host health",
        means="the DHCP server has ended, is stopped by a signal, or is not the one that was started for this network; or a file "
        "among its reservations does not belong to a slot, or their folder has another mode",
        evidence="desired: the network that the DHCP server serves; observed: that the server does not serve the "
        "network, or the foreign files",
        source="pidfd",
        policy="repair",
    ),
    DriftType(
        kind="gateway.link",
        scope="node",
        serves="requirement NOD-6: host health",
        means="the bridge's own link has another MAC or MTU, answers no ARP request, or has additions of another program: "
        "a queueing discipline, a filter, an XDP program, a setting that drops or leaks traffic",
        evidence="desired: the settings of the bridge's link; observed: the settings that differ and the additions, "
        "by name",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.route",
        scope="node",
        serves="requirement NOD-6: host health",
        means="a route that the kernel makes for the gateway's address was deleted or replaced",
        evidence="desired: the routes to the subnet and to the gateway's address; observed: the missing routes",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="gateway.neighbour",
        scope="node",
        serves="requirement NOD-6: host health",
        means="a static neighbour entry was set on the bridge, so the host does not resolve the MACs of slices by ARP",
        evidence="desired: no static neighbour entries on the bridge; observed: the static neighbour entries",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="uplink.lost",
        scope="node",
        serves="requirement NOD-6: default-route uplink",
        means="no default route leaves by the uplink, or the uplink has no carrier",
        evidence="desired: the uplink; observed: the links with a carrier that have a default route",
        source="rtnetlink",
        policy="block",
    ),
    DriftType(
        kind="uplink.unresponsive",
        scope="node",
        serves="requirement NOD-6: default-route uplink",
        means="the gateway of the default route over the uplink does not answer the ARP requests that the kernel sends "
        "for the agent",
        evidence="desired: a gateway that answers ARP requests; observed: the address of the unresponsive gateway",
        # The kernel sends no event until an entry fails, and entries of booting slices fail all the time.
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="uplink.changed",
        scope="node",
        serves="requirement NOD-6: default-route uplink",
        means="the uplink has another MAC or MTU than when the agent started, or its ARP is off; a restart of the agent "
        "accepts the change",
        evidence="desired: the uplink's settings when the agent started; observed: the uplink's present settings",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.route",
        scope="node",
        serves="requirement NOD-6: host health",
        means="a route of another program sends packets for the slices' subnet elsewhere, or drops them",
        evidence="desired: only routes over the bridge; observed: the foreign routes, with their links and gateways",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.policy_rule",
        scope="node",
        serves="requirement NOD-6: host health",
        means="a policy rule of another program drops packets from or to slices or routes them by a table that sends them "
        "elsewhere, or the rule for the table local or main is missing",
        evidence="desired: routing by the tables local and main; observed: the foreign rules, with their "
        "priorities, and missing rules for these tables",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.upper_link",
        scope="node",
        serves="requirement NOD-6: host health",
        means="a link of another program (macvlan, VLAN) is stacked on the bridge's own link",
        evidence="desired: no link on top of the bridge's link; observed: the kind and name of the link found",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.uplink_qdisc",
        scope="node",
        serves="requirement NOD-6: default-route uplink",
        means="a foreign queueing discipline, filter or XDP program on the uplink may delay, drop or redirect packets",
        evidence="desired: no foreign queueing discipline, filter or XDP program; observed: the kinds and effects of those found",
        source="rtnetlink",
        policy="report",
    ),
    DriftType(
        kind="device.absent",
        scope="node",
        serves="requirement NOD-6: BF3 tmfifo present",
        means="a device named in the settings does not exist",
        evidence="desired: the device; observed: that the device does not exist",
        source="rtnetlink",
        policy="block",
    ),
    DriftType(
        kind="foreign.dhcp_server",
        scope="node",
        serves="drift signal 3 of requirement NOD-7: the DHCP lease matches the reservation",
        means="another program listens for DHCP requests on the slices' bridge and may answer them; the agent does not stop it",
        evidence="desired: one DHCP server; observed: the other DHCP server, by its process",
        source="survey",
        policy="report",
    ),
    DriftType(
        kind="foreign.switch_manager",
        scope="node",
        serves="requirement NOD-3: traffic between slices is denied by default",
        means="Open vSwitch accepts database changes from a manager, over the network or another socket; the agent keeps "
        "the manager, and reverts its changes to the bridge",
        evidence="desired: no manager of Open vSwitch; observed: the managers, by their targets",
        source="ovsdb",
        policy="report",
    ),
    DriftType(
        kind="foreign.rules",
        scope="node",
        serves="drift signal 4 of requirement NOD-7: NAT and firewall state match the ingress rules",
        means="a rule of another table, or a chain's policy, can match packets of slices at its hook and drops, rejects, "
        "queues, translates, diverts, copies, rewrites or does not track them, or translates a destination into their network",
        evidence="desired: no foreign rule that affects packets of slices; observed: the rule's table, chain, hook, "
        "handle or number, and effect",
        source="nfnetlink",
        policy="report",
    ),
    DriftType(
        kind="foreign.xfrm_policy",
        scope="node",
        serves="drift signal 7 of requirement NOD-7: the endpoints are reachable as published",
        means="an IPsec policy of another program drops or transforms packets from or to the slices' network",
        evidence="desired: no foreign IPsec policy; observed: the policy's effect, networks and direction",
        source="xfrm",
        policy="report",
    ),
    DriftType(
        kind="link.absent",
        scope="slot",
        serves="drift signal 1 of requirement NOD-7: the vNIC is on the right bridge or VF",
        means="the slice's tap was deleted, or its virtual function has no representor any more",
        evidence="desired: the link; observed: that the link does not exist",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="link.changed",
        scope="slot",
        serves="drift signal 1 of requirement NOD-7: the vNIC is on the right bridge or VF",
        means="the link is down, has another MTU, owner or name, answers ARP or IPv6 for the host, is foreign, or is a port of "
        "another bridge as well; or another program added an address or a queueing discipline, or changed its MAC",
        evidence="desired: the link's settings; observed: the link's actual settings",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="link.diverted",
        scope="slot",
        serves="requirement NOD-3: traffic between slices is denied by default",
        means="frames of the slice's link can bypass the switch: a filter mirrors or redirects them, a BPF or XDP "
        "program handles them, or a macvlan, macvtap, ipvlan or VLAN link is stacked on the link; the agent deletes "
        "such a stacked link",
        evidence="desired: the link's settings; observed: the link's actual settings and the object that diverts the "
        "link's frames, by its target or name",
        source="rtnetlink",
        policy="repair",
    ),
    DriftType(
        kind="lease.unreserved",
        scope="slot",
        serves="drift signal 3 of requirement NOD-7: the DHCP lease matches the reservation",
        means="the DHCP server does not have the slot's reservation: its file was edited or removed, or has another mode or "
        "owner, or is not a file",
        evidence="desired: the DHCP reservation; observed: that the reservation does not exist, or how it differs",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.conflicting",
        scope="slot",
        serves="drift signal 3 of requirement NOD-7: the DHCP lease matches the reservation",
        means="another reservation has the slot's name, MAC address or IP address",
        evidence="desired: the slot's DHCP reservation; observed: the conflicting reservation",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.foreign",
        scope="slot",
        serves="requirement NOD-4: a foreign DHCP lease is drift and never frees or moves an address",
        means="the slot's MAC address has a DHCP lease of another IP address, or another MAC address has a DHCP lease "
        "of the slot's IP address",
        evidence="desired: the MAC address for which the IP address is reserved; observed: the conflicting DHCP lease",
        source="inotify",
        policy="repair",
    ),
    DriftType(
        kind="lease.expired",
        scope="slot",
        serves="requirement NOD-4: an expired DHCP lease is drift and never frees or moves an address",
        means="the guest of a slice has no valid DHCP lease: the guest did not renew it, or the server lost it; "
        "the address stays reserved",
        evidence="desired: a valid DHCP lease; observed: that the lease has ended",
        source="survey",
        policy="report",
    ),
    DriftType(
        kind="port.absent",
        scope="slot",
        serves="drift signal 1 of requirement NOD-7: the vNIC is on the right bridge or VF",
        means="the slice's port was removed from the switch",
        evidence="desired: the switch port; observed: that the port does not exist",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="port.changed",
        scope="slot",
        serves="drift signal 1 of requirement NOD-7: the vNIC is on the right bridge or VF",
        means="the slice's port was moved to another bridge, has another number or a VLAN, or leads to a device "
        "that no longer exists; or any other setting of it differs (policing, QoS, a bond), or the switch blocks it",
        evidence="desired: the port's bridge, number, VLANs and settings; observed: the values that differ",
        source="ovsdb",
        policy="repair",
    ),
    DriftType(
        kind="port.flows",
        scope="slot",
        serves="drift signal 2 of requirement NOD-7: the MAC is as approved",
        means="flows that guard the slice's port were deleted, or foreign flows were added with its cookie",
        evidence="desired: the number of flows; observed: the numbers of missing and foreign flows",
        source="openflow",
        policy="repair",
    ),
    DriftType(
        kind="port.meter",
        scope="slot",
        serves="requirement NOD-3: QoS per vNIC",
        means="a meter of the slice was changed or added, or deleted together with its flows",
        evidence="desired: the meters with their rates; observed: the meters found",
        # The flow monitor reports no meters, only flows that were deleted together with one.
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="rules.changed",
        scope="slot",
        serves="drift signal 4 of requirement NOD-7: NAT and firewall state match the ingress rules",
        means="a rule of the slot is missing or duplicated, or a foreign rule has its name",
        evidence="desired: the number of nftables rules; observed: the missing and the foreign rules, by their chains",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="ingress.changed",
        scope="ingress",
        serves="drift signals 4 and 7 of requirement NOD-7: NAT and published endpoints match the ingress rules",
        means="the rules of one ingress are missing or changed, so that permitted sources are blocked or others are let in",
        evidence="desired: the number of nftables rules; observed: the missing and the foreign rules, by their chains",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="ingress.foreign",
        scope="slot",
        serves="requirement ING-1: stale ingress rules are drift",
        means="rules of an ingress exist that the slot does not have, or connections that were established through such rules",
        evidence="desired: no ingress rules except those of the slot's order; observed: the number of foreign rules "
        "and the ingress to which they belong, or the number of connections",
        source="nfnetlink",
        policy="repair",
    ),
    DriftType(
        kind="machine.absent",
        scope="slot",
        serves="drift signal 6 of requirement NOD-7: an active slice has passed its readiness check",
        means="the slice's machine does not run: it was destroyed, or its guest or its process ended",
        evidence="desired: the running machine; observed: the machine's actual state",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.paused",
        scope="slot",
        serves="drift signal 6 of requirement NOD-7: an active slice has passed its readiness check",
        means="another program paused the slice's machine",
        evidence="desired: the running machine; observed: the machine's actual state",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.frozen",
        scope="slot",
        serves="drift signal 6 of requirement NOD-7: an active slice has passed its readiness check",
        means="a signal stopped the process of the slice's machine, which libvirt still reports as running",
        evidence="desired: the running machine; observed: that its process is stopped",
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="machine.changed",
        scope="slot",
        serves="drift signal 2 of requirement NOD-7: the MAC is as approved",
        means="the machine with the slot's name differs from the order: its network card, size, image, owner or boot "
        "source; or its card's link is down, its display accepts connections, it is throttled, or it has an additional "
        "device; or its process has an internet socket, a card or another device that libvirt does not show",
        evidence="desired: the machine as ordered; observed: the machine's actual properties",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.unplugged",
        scope="slot",
        serves="drift signal 1 of requirement NOD-7: the vNIC is on the right bridge or VF",
        means="the tap was deleted while the slice's machine used it; the machine stays disconnected even if the tap is recreated",
        evidence="desired: the machine; observed: that no process holds its tap",
        source="rtnetlink",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.duplicate",
        scope="slot",
        serves="drift signal 1 of requirement NOD-7: the vNIC is on the right bridge or VF",
        means="another guest of this agent uses the slot's tap or virtual function, or a machine's process still runs "
        "although the machine no longer exists",
        evidence="desired: a device that only the slot's own machine uses; observed: another machine or process that uses it",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.devices",
        scope="slot",
        serves="drift signal 5 of requirement NOD-7: the fabric device is on the right VM",
        means="the slice's machine has PCI devices that were not ordered, or lacks an ordered one",
        evidence="desired: the PCI devices as ordered; observed: the PCI devices that the machine has",
        source="libvirt",
        policy="repair",
        restarts=True,
    ),
    DriftType(
        kind="machine.pins",
        scope="slot",
        serves="requirement NOD-12: NUMA and IRQ locality",
        means="the machine's virtual CPUs are not pinned to the host CPUs of the slot",
        evidence="desired: one host CPU for each virtual CPU; observed: the host CPUs on which the virtual CPUs may "
        "run",
        source="libvirt",
        policy="repair",
    ),
    DriftType(
        kind="machine.seed",
        scope="slot",
        serves="requirement NOD-8: a repair changes only what differs",
        means="the boot data or the device list of the guest is missing in the slot's folder",
        evidence="desired: the file; observed: that the file does not exist",
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="slot.device",
        scope="slot",
        serves="drift signal 5 of requirement NOD-7: the fabric device is on the right VM",
        means="a PCI device that the settings assign to the slot does not exist or cannot be read: it failed, has "
        "another address, or is a virtual function without a representor",
        evidence="desired: the PCI device; observed: that the device does not exist",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="slot.ungranted",
        scope="slot",
        serves="requirements ALC-2 and LED-3: a PCI function has one holder; changing the topology is an explicit act",
        means="the node's settings assign other PCI devices to the slot than those that were approved for it; "
        "a new approval of the slot grants it the devices of the settings",
        evidence="desired: the PCI devices granted to the slot; observed: the PCI devices that the node describes",
        source="survey",
        policy="block",
        ends_at_approval=True,
    ),
    DriftType(
        kind="slot.changed",
        scope="slot",
        serves="requirement ALC-2: only an admin changes the hardware topology of a node, by an explicit act",
        means="the size, the NUMA node or a PCI device of the slot differs from the approved hardware: the device does not "
        "exist, is another one (vendor and device id, model, memory, UUID), or has another place (NUMA node, IOMMU group, "
        "root port, physical function, VF) or link layer; a new approval of the slot accepts the hardware found",
        evidence="desired: one property of the slot or of a device as approved; observed: its present value",
        source="survey",
        policy="block",
        compares_observed=True,
        ends_at_approval=True,
    ),
    DriftType(
        kind="slot.occupied",
        scope="slot",
        serves="requirements ALC-8 and ALC-11: nothing runs in a slot that is off or empty",
        means="remains of a slice were found in a slot that had been proved stopped or empty",
        evidence="desired: no running or reachable object of a slice; observed: the remains that were found",
        source="survey",
        policy="repair",
    ),
    DriftType(
        kind="slot.absent",
        scope="slot",
        serves="requirement ALC-2: only an admin changes the hardware topology of a node, by an explicit act",
        means="the node's settings no longer contain the slot",
        evidence="desired: the slot; observed: that the node does not describe the slot",
        source="survey",
        policy="block",
    ),
    DriftType(
        kind="foreign.mirror",
        scope="slot",
        serves="requirement NOD-3: traffic between slices is denied by default",
        means="a rule of another table copies or sends frames to the slice's link, or this slice's frames to another link",
        evidence="desired: no rule that copies or redirects frames of slices; observed: the rule's table, chain, "
        "hook and handle, and the target of the frames",
        source="nfnetlink",
        policy="block",
    ),
    DriftType(
        kind="slice.unreachable",
        scope="slot",
        serves="drift signal 7 of requirement NOD-7: the endpoints are reachable as published",
        means="the slice does not answer the probes from the gateway to its readiness port, or it answers these "
        "but not the probes of one of its ingresses, which come from the uplink's side of the packet filter; the cause "
        "can be anywhere on the path, including the tenant's guest",
        evidence="desired: an answer of the probed address and port; observed: the result, with the hop that "
        "failed: gateway, address, port or ingress",
        source="probe",
        policy="report",
    ),
)
"""All drift types, in the order of the documentation: the node, then a slot from its link to its machine."""

CATALOGUE: Final[Mapping[str, DriftType]] = MappingProxyType({type_.kind: type_ for type_ in TYPES})
"""Drift types by kind; a newer node may report kinds that are missing here."""
KINDS: Final[tuple[DriftKind, ...]] = get_args(DriftKind)
