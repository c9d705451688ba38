"""Tests of reading the tracked connections that the kernel lists, from its netlink messages
(linux/netfilter/nfnetlink_conntrack.h).
"""

import socket
from typing import Any

import pytest

from events.values import Ipv4Address
from node_agent.aspects.ingress_rules import Connection
from node_agent.drivers.network.conntrack import connections_with, ipv4_connections_in
from node_agent.drivers.network.netlink import messages_in
from tests.connections import inbound

PUBLIC, SLICE, WORLD = Ipv4Address("203.0.113.7"), Ipv4Address("10.100.1.10"), Ipv4Address("198.51.100.1")


def side(source: str, source_port: int, destination: str, destination_port: int, version: int = 4) -> Any:
    ends = [[f"CTA_IP_V{version}_SRC", source], [f"CTA_IP_V{version}_DST", destination]]
    protocol = [
        ["CTA_PROTO_NUM", socket.IPPROTO_TCP],
        ["CTA_PROTO_SRC_PORT", source_port],
        ["CTA_PROTO_DST_PORT", destination_port],
    ]
    return {"attrs": [["CTA_TUPLE_IP", {"attrs": ends}], ["CTA_TUPLE_PROTO", {"attrs": protocol}]]}


def message(family: int, **attributes: Any) -> bytes:
    """Return a connection tracking message as the kernel sends it, built with pyroute2."""
    # Imported here and not above: the packages of the host drivers are an extra, and these tests are collected without
    # it.
    from pyroute2.netlink.nfnetlink.nfctsocket import nfct_msg

    sent = nfct_msg()
    sent["header"]["type"] = 0x100
    sent["nfgen_family"] = family
    sent["attrs"] = [[name, value] for name, value in attributes.items()]
    sent.encode()
    return bytes(sent.data)


def test_offloaded_tcp_connection_without_a_tracking_state_is_read() -> None:
    # The kernel omits CTA_PROTOINFO for connections that it offloaded (ctnetlink_dump_info, IPS_OFFLOAD_BIT).
    offloaded = message(
        socket.AF_INET,
        CTA_TUPLE_ORIG=side(WORLD, 4000, PUBLIC, 20022),
        CTA_TUPLE_REPLY=side(SLICE, 22, WORLD, 4000),
    )
    assert connections_of(SLICE, offloaded * 2) == [inbound(PUBLIC, 20022, SLICE, 22)] * 2


@pytest.mark.parametrize("ip", [WORLD, PUBLIC, SLICE])
def test_tracked_connection_is_found_by_each_address_of_its_original_and_reply_side(ip: Ipv4Address) -> None:
    listed = message(
        socket.AF_INET,
        CTA_TUPLE_ORIG=side(WORLD, 4000, PUBLIC, 20022),
        CTA_TUPLE_REPLY=side(SLICE, 22, WORLD, 4000),
    )
    assert connections_of(ip, listed) == [inbound(PUBLIC, 20022, SLICE, 22)]


def test_tracked_connection_of_other_addresses_is_skipped_without_decoding() -> None:
    # A host may track 250,000 connections: even an undecodable message is skipped by its bytes.
    others = message(socket.AF_INET, CTA_TUPLE_ORIG=side(WORLD, 4000, PUBLIC, 20022))
    assert connections_of(SLICE, others) == []


def test_tracked_connection_that_contains_an_address_only_in_its_mark_is_not_found_by_this_address() -> None:
    marked = message(
        socket.AF_INET,
        CTA_TUPLE_ORIG=side(WORLD, 4000, PUBLIC, 20022),
        CTA_TUPLE_REPLY=side(PUBLIC, 22, WORLD, 4000),
        CTA_MARK=int.from_bytes(socket.inet_aton(SLICE)),
    )
    assert socket.inet_aton(SLICE) in marked
    assert connections_of(SLICE, marked) == []


def test_tracked_ipv6_connections_are_skipped() -> None:
    ends = side("fe80::1", 4000, "fe80::2", 22, version=6)
    sent = message(socket.AF_INET6, CTA_TUPLE_ORIG=ends, CTA_TUPLE_REPLY=ends)
    assert list(ipv4_connections_in(messages_in(sent))) == []


def connections_of(ip: Ipv4Address, chunk: bytes) -> list[Connection]:
    return [each.connection for each in connections_with(ip, ipv4_connections_in(messages_in(chunk)))]
