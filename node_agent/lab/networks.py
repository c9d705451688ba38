"""The cables of a lab: a management bridge on this machine, and the links from nodes to it and to the site.

Only the bridge and one end of each management link lie on this machine, and their names carry the run's id: a run
that was killed is swept by name at the next start. Its nodes reach this machine at the bridge's address and nothing
else over it: its ports are isolated from one another, and what enters by the bridge is not forwarded.
"""

import errno
import fcntl
import hashlib
import ipaddress
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node_agent.lab.host import MANAGEMENT, UPLINK
from node_agent.lab.netlink import index_of, open_links, remove
from node_agent.lab.site import PORT_PREFIX

if TYPE_CHECKING:
    from pyroute2 import IPRoute

RUN_ID: Final = re.compile(r"[a-z0-9]{1,8}")
UPSTREAM: Final = ipaddress.IPv4Network("198.51.100.0/24")
"""TEST-NET-2 (RFC 5737), inside the site's namespaces only."""
_MANAGEMENT_RANGE: Final = ipaddress.IPv4Network("10.213.0.0/16")
_LOCK: Final = Path("/run/lock/sliceplane-lab")
FIRST_HOST: Final = 10
"""A node's addresses end in this number plus its index, which starts at 1."""


class NoFreeSubnet(Exception):
    """Every /24 of the range for management networks overlaps an address or route of this machine."""

    def __init__(self) -> None:
        super().__init__(f"every /24 of {_MANAGEMENT_RANGE} is in use on this machine")


class RunHeld(Exception):
    """A lab of this run id stands on this machine already."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"a lab with the run id {run_id} is running already: stop it, or take another id")
        self.run_id = run_id


def bridge_name(run_id: str) -> str:
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(f"a run id is 1 to 8 of a-z and 0-9, not {run_id!r}: link names hold 15 characters")
    return f"sl-{run_id}"


@contextmanager
def hold(run_id: str) -> Iterator[None]:
    """Own the names of a run for as long as its lab stands: nobody sweeps the cables of one that lives.

    Raises `RunHeld`.
    """
    # A name that the kernel drops with its holder, and no file for anybody to remove (unix(7), abstract).
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0sliceplane-lab-{bridge_name(run_id)}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise RunHeld(run_id) from None
        yield


def sweep(run_id: str) -> list[str]:
    """Remove what a run of this id left on this machine, if anything; returns the names of the links removed."""
    bridge = bridge_name(run_id)
    with open_links() as links:
        left = {
            name: link["index"]
            for link in links.get_links()
            if (name := link.get_attr("IFLA_IFNAME")) == bridge or name.startswith(f"{bridge}-")
        }
        for index in left.values():
            remove(links, index)
    return sorted(left)


def make_management(run_id: str) -> ipaddress.IPv4Interface:
    """Make the run's bridge with the first address of a /24 that this machine does not use."""
    bridge = bridge_name(run_id)
    with open_links() as links, _one_at_a_time():
        subnet = _free_subnet(links, run_id)
        address = ipaddress.IPv4Interface(f"{subnet[1]}/{subnet.prefixlen}")
        links.link("add", ifname=bridge, kind="bridge")
        _set(f"ipv6/conf/{bridge}/disable_ipv6", "1")
        _set(f"ipv4/conf/{bridge}/forwarding", "0")
        index = index_of(links, bridge)
        links.addr("add", index=index, address=str(address.ip), prefixlen=subnet.prefixlen)
        links.link("set", index=index, state="up")
    return address


def attach(run_id: str, index: int, node_pid: int, site_pid: int) -> None:
    """Plug a node's two cards in: `mgmt0` at this machine's bridge, `uplink0` at the site."""
    bridge = bridge_name(run_id)
    port = f"{bridge}-{index}"
    with open_links() as links:
        # The port of a node that has just ended may still be there: the kernel removes it in the background.
        for old in links.link_lookup(ifname=port):
            remove(links, old)
        links.link("add", ifname=port, kind="veth", peer={"ifname": MANAGEMENT, "net_ns_pid": node_pid})
        at = index_of(links, port)
        _set(f"ipv6/conf/{port}/disable_ipv6", "1")
        links.link("set", index=at, master=index_of(links, bridge))
        # Before it is up: nodes must not see one another, not even for a moment.
        links.brport("set", index=at, isolated=1)
        links.link("set", index=at, state="up")
        links.link(
            "add",
            ifname=f"{PORT_PREFIX}{index}",
            net_ns_pid=site_pid,
            kind="veth",
            peer={"ifname": UPLINK, "net_ns_pid": node_pid},
        )


def _free_subnet(links: "IPRoute", run_id: str) -> ipaddress.IPv4Network:
    """A /24 without overlap, tried from a place of the run's own, so that runs seldom meet."""
    taken = list(_networks_in_use(links))
    candidates = list(_MANAGEMENT_RANGE.subnets(new_prefix=24))
    start = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4]) % len(candidates)
    for subnet in candidates[start:] + candidates[:start]:
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise NoFreeSubnet


def _networks_in_use(links: "IPRoute") -> Iterator[ipaddress.IPv4Network]:
    for address in links.get_addr(family=2):
        yield ipaddress.IPv4Network(f"{address.get_attr('IFA_ADDRESS')}/{address['prefixlen']}", strict=False)
    for route in links.get_routes(family=2):
        # A default route covers everything and claims nothing.
        if destination := route.get_attr("RTA_DST"):
            yield ipaddress.IPv4Network(f"{destination}/{route['dst_len']}", strict=False)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two labs that start at once must not choose the same subnet."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _set(key: str, value: str) -> None:
    path = Path("/proc/sys/net") / key
    if path.exists():
        path.write_text(value)
