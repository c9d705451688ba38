"""OpenFlow rules of one slice's port: they permit traffic between the slice and the gateway, and nothing else.

The bridge is `secure`: it drops every packet that no flow permits. A slice can reach only the gateway, which is the
bridge's local port, and no other slice. It can send only with its own MAC and IP, in ARP too. It can send DHCP requests
but not DHCP replies, and neither VLAN tags, IPv6 nor multicast. If a slice has a rate limit, its IP traffic passes its
meters (`meters`). OpenFlow cannot match the content of DHCP messages: the gateway's filter checks which DHCP lease a
message concerns (`translations`).

The number of a port is derived from its slot's index, and the gateway's MAC from the gateway's IP address, so that the
flows depend only on the desired state and are the same after any restart.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from events.values import Ipv4Address, MacAddress, SlotIndex
from node_agent.aspects.meters import from_slice, to_slice
from node_agent.host.slices import SliceNetwork

COOKIE: Final = 0x5C1C_E000_0000_0000
"""Cookie of the flows of slices; the lowest byte is the slot's index."""
COOKIE_MASK: Final = 0xFFFF_FFFF_FFFF_FF00
FIRST_PORT: Final = 1000
LOCAL: Final = "LOCAL"
LOCAL_NUMBER: Final = 0xFFFF_FFFE
"""OFPP_LOCAL, the number of a bridge's own port in OpenFlow messages."""
BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
UNTAGGED: Final = {"vlan_tci": "0x0/0x1fff"}
"""Flow match for frames without an 802.1Q header. Without this match, a flow for `ip` also matches a packet inside a
VLAN tag.
"""


@dataclass(frozen=True, slots=True)
class Flow:
    """One OpenFlow rule. `match` holds fields with the names of ovs-fields(7); a field without a value has ""."""

    priority: int
    match: frozenset[tuple[str, str]]
    actions: str


def cookie_of(index: SlotIndex) -> int:
    """Return the OpenFlow cookie that all flows of a slot have."""
    return COOKIE | index


def port_number(index: SlotIndex) -> int:
    """Return the OpenFlow port number of a slot; the agent requests it from OVS and checks that OVS assigned it."""
    return FIRST_PORT + index


@lru_cache(maxsize=16)
def gateway_mac(gateway: Ipv4Address) -> MacAddress:
    """Return the bridge's MAC, which is locally administered and derived from the gateway's address.

    The MAC stays the same when the bridge is created again, so that the guests' ARP caches stay valid.
    """
    return MacAddress("02:53:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(gateway).packed))


def flows_of(slice_: SliceNetwork) -> frozenset[Flow]:
    """Return all desired OpenFlow flows of a slice's port."""
    return frozenset((*_from_slice(slice_), *_to_slice(slice_)))


def _from_slice(slice_: SliceNetwork) -> tuple[Flow, ...]:
    port, gateway = str(port_number(slice_.index)), gateway_mac(slice_.gateway)
    arp = {"arp": "", "arp_sha": slice_.mac, "arp_spa": slice_.ip, "arp_tpa": slice_.gateway}
    request = {"udp": "", "tp_src": "68", "tp_dst": "67"}

    def allow(priority: int, actions: str = LOCAL, **fields: str) -> Flow:
        return _flow(priority, actions, in_port=port, dl_src=slice_.mac, **fields)

    return (
        allow(300, **arp, arp_op="1", dl_dst=BROADCAST),
        allow(300, **arp, arp_op="1", dl_dst=gateway),
        allow(300, **arp, arp_op="2", dl_dst=gateway),
        allow(200, _limited(slice_, from_slice, LOCAL), ip="", nw_src=slice_.ip, dl_dst=gateway),
        allow(200, **request, nw_src="0.0.0.0", nw_dst="255.255.255.255", dl_dst=BROADCAST),
        # A client that rebinds broadcasts from its own address (RFC 2131, 4.4.5).
        allow(200, **request, nw_src=slice_.ip, nw_dst="255.255.255.255", dl_dst=BROADCAST),
        # A slice must not act as a DHCP server, not even towards the gateway.
        _flow(400, "drop", in_port=port, udp="", tp_src="67"),
    )


def _to_slice(slice_: SliceNetwork) -> tuple[Flow, ...]:
    port, gateway = f"output:{port_number(slice_.index)}", gateway_mac(slice_.gateway)
    reply = {"udp": "", "nw_src": slice_.gateway, "tp_src": "67", "tp_dst": "68"}

    def allow(priority: int, actions: str = port, **fields: str) -> Flow:
        return _flow(priority, actions, in_port=LOCAL, dl_src=gateway, **fields)

    return (
        allow(300, arp="", arp_sha=gateway, arp_tpa=slice_.ip, arp_op="1", dl_dst=BROADCAST),
        allow(300, arp="", arp_sha=gateway, arp_tpa=slice_.ip, dl_dst=slice_.mac),
        allow(200, _limited(slice_, to_slice, port), ip="", nw_dst=slice_.ip, dl_dst=slice_.mac),
        # A refusal (DHCPNAK) is a broadcast; the gateway's filter replaces its destination by the client's MAC.
        allow(200, **reply, nw_dst="255.255.255.255", dl_dst=slice_.mac),
    )


def _limited(slice_: SliceNetwork, meter: Callable[[SlotIndex], int], output: str) -> str:
    return output if slice_.rate_mbit is None else f"meter:{meter(slice_.index)},{output}"


def _flow(priority: int, actions: str, **fields: str) -> Flow:
    return Flow(priority, frozenset((UNTAGGED | fields).items()), actions)
