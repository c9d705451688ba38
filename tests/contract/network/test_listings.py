"""What the kernel lists of a lab node's links, and how much of it is read."""

import socket
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


def counters() -> str:
    return Path("/proc/thread-self/net/dev").read_text()


def test_links_that_only_counted_packets_are_not_decoded_anew(host: "Real") -> None:
    # Here and not above: the drivers' packages are an extra, and these tests are collected without it too.
    from node_agent.drivers import rtnetlink

    before, counted = rtnetlink.links(), counters()
    decoded = rtnetlink._link.cache_info().misses
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sends:
        sends.sendto(b"counted", ("127.0.0.1", 9))
    assert counters() != counted
    assert rtnetlink.links() == before
    assert rtnetlink._link.cache_info().misses == decoded
