"""The links of a lab: a management bridge on this machine, and the links from the nodes to the bridge and to the site.

Only the bridge and one end of each management link are in the network namespace of this machine. Their names contain
the run id, so that the next start can find and remove the links of a killed run. Over the bridge, nodes reach only the
address of this machine: the ports are isolated from each other, and packets that enter through the bridge are not
forwarded.
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
from node_agent.lab.site import BRIDGE_MAC, PORT_PREFIX

if TYPE_CHECKING:
    from pyroute2 import IPRoute

RUN_ID: Final = re.compile(r"[a-z0-9]{1,8}")
UPSTREAM: Final = ipaddress.IPv4Network("198.51.100.0/24")
"""Subnet of the upstream network (TEST-NET-2, RFC 5737), used only inside the namespaces of the lab."""
_MANAGEMENT_RANGE: Final = ipaddress.IPv4Network("10.213.0.0/16")
_LOCK: Final = Path("/run/lock/sliceplane-lab")
FIRST_HOST: Final = 10
"""The last number of a lab node's IPv4 addresses is this constant plus the index of the node, which starts at 1."""


class NoFreeSubnet(Exception):
    """Every candidate subnet for the management network overlaps an address or route of this machine."""

    def __init__(self) -> None:
        super().__init__(
            f"every /24 of {_MANAGEMENT_RANGE} is in use on this machine; remove unused addresses or routes"
        )


class RunInUse(Exception):
    """A lab with this run id is already running on this machine."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"a lab with the run id {run_id} is already running; stop it, or use another id")
        self.run_id = run_id


def bridge_name(run_id: str) -> str:
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"invalid run id {run_id!r}; use 1 to 8 characters of a-z and 0-9, because link names have at most 15"
        )
    return f"sl-{run_id}"


@contextmanager
def reserve_run(run_id: str) -> Iterator[None]:
    """Reserve a lab's run id during the `with` block, so that no other process removes the links of the running lab.

    Raises `RunInUse` if the run id is in use.
    """
    # An abstract socket name (unix(7)): the kernel releases it with its owner, and no file can be left or deleted.
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0sliceplane-lab-{bridge_name(run_id)}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise RunInUse(run_id) from None
        yield


def sweep(run_id: str) -> list[str]:
    """Remove the links that a lab with this run id left on this machine, and return the names of the links."""
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
    """Create the management bridge of a lab, with the first address of a /24 subnet that this machine does not use.

    Raises `NoFreeSubnet`.
    """
    bridge = bridge_name(run_id)
    with open_links() as links, _one_at_a_time():
        subnet = _free_subnet(links, run_id)
        address = ipaddress.IPv4Interface(f"{subnet[1]}/{subnet.prefixlen}")
        links.link("add", ifname=bridge, kind="bridge", address=BRIDGE_MAC)
        _write_setting(f"ipv6/conf/{bridge}/disable_ipv6", "1")
        _write_setting(f"ipv4/conf/{bridge}/forwarding", "0")
        index = index_of(links, bridge)
        links.addr("add", index=index, address=str(address.ip), prefixlen=subnet.prefixlen)
        links.link("set", index=index, state="up")
    return address


def attach(run_id: str, index: int, node_pid: int, site_pid: int) -> None:
    """Attach the two network cards of a node: `mgmt0` to this machine's bridge, and `uplink0` to the site."""
    bridge = bridge_name(run_id)
    port = f"{bridge}-{index}"
    with open_links() as links:
        # The port of a node that has just stopped may still exist, because the kernel removes it asynchronously.
        for stale in links.link_lookup(ifname=port):
            remove(links, stale)
        links.link("add", ifname=port, kind="veth", peer={"ifname": MANAGEMENT, "net_ns_pid": node_pid})
        port_index = index_of(links, port)
        _write_setting(f"ipv6/conf/{port}/disable_ipv6", "1")
        links.link("set", index=port_index, master=index_of(links, bridge))
        # Isolated before it is up, because nodes must not reach each other at any time.
        links.brport("set", index=port_index, isolated=1)
        links.link("set", index=port_index, state="up")
        links.link(
            "add",
            ifname=f"{PORT_PREFIX}{index}",
            net_ns_pid=site_pid,
            kind="veth",
            peer={"ifname": UPLINK, "net_ns_pid": node_pid},
        )


def _free_subnet(links: "IPRoute", run_id: str) -> ipaddress.IPv4Network:
    """Return a /24 subnet that overlaps no address and no route of this machine. Raises `NoFreeSubnet`.

    The search starts at a subnet derived from the run id, so that concurrent labs rarely choose the same subnet.
    """
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
        # A default route overlaps every subnet but does not reserve any.
        if destination := route.get_attr("RTA_DST"):
            yield ipaddress.IPv4Network(f"{destination}/{route['dst_len']}", strict=False)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Serialize the choice of subnets, so that labs that start concurrently choose different subnets."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_setting(key: str, value: str) -> None:
    path = Path("/proc/sys/net") / key
    if path.exists():
        path.write_text(value)
