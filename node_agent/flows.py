"""The OpenFlow rules of one slice's port: what may pass between it and the gateway. Everything else is dropped.

The bridge is `secure`: without a flow nothing passes, so this list is complete by being a list of permissions. A slice
talks to the gateway's local port alone, never to another slice; it speaks with its own MAC and IP alone, in ARP too;
it asks DHCP and never answers it; it sends no VLAN tag, no IPv6, no multicast. Where it has a rate, its IP goes through
its meters (`meters`). What DHCP carries inside, OpenFlow cannot match: whose lease a message is about is checked by the
gateway's filter (`translations`).

Ports are numbered from their slot and the gateway's MAC from its address, so that the flows follow from the wanted
slice alone and are the same after any restart.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from events.values import Ipv4Address, MacAddress, SlotIndex
from node_agent.meters import from_slice, to_slice
from node_agent.slices import SliceNetwork

COOKIE: Final = 0x5C1C_E000_0000_0000
"""Marks the flows of slices; the slot's index stands in the lowest byte."""
COOKIE_MASK: Final = 0xFFFF_FFFF_FFFF_FF00
FIRST_PORT: Final = 1000
LOCAL: Final = "LOCAL"
LOCAL_NUMBER: Final = 0xFFFF_FFFE
"""OFPP_LOCAL, the number of a bridge's own port in OpenFlow messages."""
BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
# No 802.1Q header at all: without this, `ip` also matches a packet inside a VLAN tag.
UNTAGGED: Final = {"vlan_tci": "0x0/0x1fff"}


@dataclass(frozen=True, slots=True)
class Flow:
    """One permission. `match` holds OpenFlow fields as ovs-fields(7) names them; a bare word has no value."""

    priority: int
    match: frozenset[tuple[str, str]]
    actions: str


def cookie_of(index: SlotIndex) -> int:
    return COOKIE | index


def port_number(index: SlotIndex) -> int:
    """The OpenFlow port of a slot, requested from OVS and checked."""
    return FIRST_PORT + index


@lru_cache(maxsize=16)
def gateway_mac(gateway: Ipv4Address) -> MacAddress:
    """The bridge's MAC: locally administered, and following from its address, so that no guest's ARP cache goes
    stale.
    """
    return MacAddress("02:53:" + ":".join(f"{byte:02x}" for byte in ipaddress.IPv4Address(gateway).packed))


def flows_of(slice_: SliceNetwork) -> frozenset[Flow]:
    return frozenset((*_from_slice(slice_), *_to_slice(slice_)))


def _from_slice(slice_: SliceNetwork) -> tuple[Flow, ...]:
    port, gateway = str(port_number(slice_.index)), gateway_mac(slice_.gateway)
    arp = {"arp": "", "arp_sha": slice_.mac, "arp_spa": slice_.ip, "arp_tpa": slice_.gateway}
    ask = {"udp": "", "tp_src": "68", "tp_dst": "67"}

    def allow(priority: int, actions: str = LOCAL, **fields: str) -> Flow:
        return _flow(priority, actions, in_port=port, dl_src=slice_.mac, **fields)

    return (
        allow(300, **arp, arp_op="1", dl_dst=BROADCAST),
        allow(300, **arp, arp_op="1", dl_dst=gateway),
        allow(300, **arp, arp_op="2", dl_dst=gateway),
        allow(200, _limited(slice_, from_slice, LOCAL), ip="", nw_src=slice_.ip, dl_dst=gateway),
        allow(200, **ask, nw_src="0.0.0.0", nw_dst="255.255.255.255", dl_dst=BROADCAST),
        # A client that rebinds broadcasts from its own address (RFC 2131, 4.4.5).
        allow(200, **ask, nw_src=slice_.ip, nw_dst="255.255.255.255", dl_dst=BROADCAST),
        # A slice is no DHCP server, not even towards the gateway.
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
        # A refusal (DHCPNAK) goes to everybody; the gateway's filter has put its client's MAC on it.
        allow(200, **reply, nw_dst="255.255.255.255", dl_dst=slice_.mac),
    )


def _limited(slice_: SliceNetwork, meter: Callable[[SlotIndex], int], output: str) -> str:
    return output if slice_.rate_mbit is None else f"meter:{meter(slice_.index)},{output}"


def _flow(priority: int, actions: str, **fields: str) -> Flow:
    return Flow(priority, frozenset((UNTAGGED | fields).items()), actions)
