"""Tests of the kernel's listings of links and routes on a lab node, and of the part of them that the agent reads."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from node_agent.lab.lab import Lab
from tests.contract.network.slices import NETWORK

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real

pytestmark = pytest.mark.node


@pytest.fixture
def host(lab: Lab) -> Iterator["Real"]:
    from tests.contract.network.lab_host import real_host

    with real_host(lab.node("lab-b"), NETWORK) as host:
        yield host


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def test_every_link_of_a_default_route_with_several_next_hops_is_an_uplink(host: "Real") -> None:
    assert host.links.default_route_links() == {"uplink0"}
    alone = ip("route", "show", "default").split()
    ip("link", "add", "second0", "type", "veth", "peer", "name", "second1")
    ip("address", "add", "192.0.2.2/30", "dev", "second0")
    ip("link", "set", "second1", "up")
    ip("link", "set", "second0", "up")
    hops = [*("nexthop", *alone[1:5]), "nexthop", "via", "192.0.2.1", "dev", "second0"]
    try:
        ip("route", "replace", "default", *hops)
        assert host.links.default_route_links() == {"uplink0", "second0"}
    finally:
        ip("route", "replace", *alone)
        ip("link", "delete", "second0")


def counters() -> str:
    return Path("/proc/thread-self/net/dev").read_text()


def test_network_links_of_which_only_packet_counters_changed_are_not_decoded_again(host: "Real") -> None:
    # Imported here and not above: the drivers' packages are an extra, and these tests are collected without it too.
    from node_agent.drivers.network import rtnetlink

    before, counted = rtnetlink.links(), counters()
    decoded = rtnetlink._link.cache_info().misses
    for family, own in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as sends:
            sends.sendto(b"counted", (own, 9))
    assert counters() != counted
    assert rtnetlink.links() == before
    assert rtnetlink._link.cache_info().misses == decoded
