"""Real host of the network contract tests: a lab node with its daemons, observed by drivers in the node's network
namespace.
"""

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from pyroute2 import IPRoute, netns

from events.values import Ipv4Address, MacAddress
from node_agent.aspects.gateway import HostRouting, NodeNetwork
from node_agent.aspects.passthrough import PciBus
from node_agent.drivers.dhcp.dhcp import DnsmasqLeases
from node_agent.drivers.network.host_routing import NetlinkRouting
from node_agent.drivers.network.links import NetlinkLinks
from node_agent.drivers.network.nat import Nftables
from node_agent.drivers.network.ovs import OpenVSwitch
from node_agent.drivers.probes.probing import Prober
from node_agent.drivers.sysfs import SysfsPci
from node_agent.drivers.watching import Source
from node_agent.host.host import Reachability
from node_agent.host.slices import SliceNetwork
from node_agent.lab.lab import LabNode
from node_agent.packets.rules import AddressTranslation
from node_agent.real_host import sources_of
from tests.connections import WORLD
from tests.contract.network.answering import answering
from tests.contract.network.hosts import (
    FILTER_CHANGES,
    OTHER_BRIDGE,
    Addition,
    AllFilter,
    AllLeases,
    AllLinks,
    AllSwitch,
    SwitchSetting,
)
from tests.contract.network.programs import attach_xdp
from tests.contract.network.traffic.interference import BY_COMMANDS, Interference
from tests.contract.network.traffic.wire import Wire, lease
from tests.node.pci_trees import switching

FAR_END: Final = "vf-far-end"
_ALL_FRAMES: Final = "protocol all u32 match u32 0 0 action mirred egress"
_ADDING: Final[Mapping[Addition, str]] = {
    "address": "ip address add 10.100.1.10/32 dev $link",
    "qdisc": "tc qdisc add dev $link root tbf rate 1mbit burst 10k latency 50ms",
    "mirror": f"tc qdisc add dev $link clsact; tc filter add dev $link ingress {_ALL_FRAMES} mirror dev slice1",
    "redirect": f"tc qdisc add dev $link ingress; tc filter add dev $link ingress {_ALL_FRAMES} redirect dev slice1",
    "program": "tc qdisc add dev $link clsact; tc filter add dev $link egress bpf da bytecode '1,6 0 0 2,'",
    "macvlan": "ip link add spy0 link $link type macvlan mode passthru",
    "mac": "ip link set $link address 02:00:00:00:00:99",
    "route_localnet": "echo 1 > /proc/sys/net/ipv4/conf/$link/route_localnet",
}


def _run(script: str, **names: str) -> None:
    subprocess.run(["sh", "-ec", script], check=True, env={**os.environ, **names})


class Real:
    """Network drivers for a lab node, used within its network namespace: `with real_host(node) as host`."""

    def __init__(self, network: NodeNetwork, sockets: Path, folder: Path) -> None:
        self.network, self.sockets = network, sockets
        self._links = NetlinkLinks()
        self._switch = OpenVSwitch(sockets)
        self.dhcp_ended = threading.Event()
        self.leases_driver = DnsmasqLeases(folder, network, self._links, self.dhcp_ended.set)
        self.links: AllLinks = self._links
        self.routing: HostRouting = NetlinkRouting(self._links)
        self.switch: AllSwitch = self._switch
        self.filter: AllFilter = Nftables()
        self.leases: AllLeases = self.leases_driver
        self.bus: PciBus = SysfsPci(Path("/sys"))
        self._prober = Prober(network, lambda: None)
        self.reachability: Reachability = self._prober

    def answering(self, slot: SliceNetwork) -> AbstractContextManager[None]:
        return answering(slot)

    def sources(self) -> dict[str, Source]:
        return sources_of(self.network.bridge, self._switch, self.leases_driver)

    def stop(self) -> None:
        self._prober.close()
        self.leases_driver.stop()
        self._switch.close()
        self._links.close()

    def lease(self, tap: str, mac: MacAddress) -> Ipv4Address | None:
        with Wire(tap) as wire:
            return lease(wire, mac)

    def connect(self, ip: Ipv4Address) -> None:
        words = ["-p", "udp", "-s", ip, "-d", "198.51.100.1", "--sport", "4000", "--dport", "4000"]
        subprocess.run(["conntrack", "-I", "--timeout", "60", *words], check=True, capture_output=True)

    def connect_inbound(self, public: Ipv4Address, public_port: int, target: Ipv4Address, port: int) -> None:
        asked = ["-s", WORLD, "-d", public, "--sport", "4000", "--dport", str(public_port)]
        answered = ["-r", target, "-q", WORLD, "--reply-port-src", str(port), "--reply-port-dst", "4000"]
        words = ["-p", "tcp", *asked, *answered, "--state", "ESTABLISHED", "--dst-nat", f"{target}:{port}"]
        subprocess.run(["conntrack", "-I", "--timeout", "60", *words], check=True, capture_output=True)

    def plant_link(self, name: str) -> None:
        with IPRoute() as netlink:
            netlink.link("add", ifname=name, kind="veth", peer={"ifname": f"{name}-peer"})

    def stop_forwarding(self, name: str) -> None:
        Path("/proc/sys/net/ipv4/conf", name, "forwarding").write_text("0\n")

    def plant_link_without_carrier(self, name: str) -> None:
        for words in (
            f"link add {name} type veth peer name {name}-far",
            f"link set {name} up",
            f"route add default dev {name} metric 900",
        ):
            subprocess.run(["ip", *words.split()], check=True)

    def plug_in(self, name: str) -> None:
        subprocess.run(["ip", "link", "set", f"{name}-far", "up"], check=True)

    def plant_diversion(self, to: Ipv4Address, port: int) -> None:
        chain = "add chain ip other pre { type nat hook prerouting priority -101; }"
        rule = f"add rule ip other pre tcp dport {port} dnat to {to}"
        subprocess.run(
            ["nft", "-f", "-"], input=f"add table ip other\n{chain}\n{rule}\n", check=True, text=True
        )

    def make_diversion_dormant(self) -> None:
        subprocess.run(["nft", "add table ip other { flags dormant; }"], check=True)

    def remove_diversion(self) -> None:
        subprocess.run(["nft", "delete", "table", "ip", "other"], check=True)

    def plant_addition(self, name: str, addition: Addition) -> None:
        if addition == "xdp":
            attach_xdp(name)
        else:
            _run(_ADDING[addition], link=name)

    def interfere(self, interference: Interference) -> None:
        _run(BY_COMMANDS[interference].done)

    def end_interference(self, interference: Interference) -> None:
        _run(BY_COMMANDS[interference].undone)

    def plant_policy(self, source: str, destination: str) -> None:
        words = ["src", source, "dst", destination, "dir", "fwd", "action", "block"]
        subprocess.run(["ip", "xfrm", "policy", "add", *words], check=True)

    def remove_policy(self, source: str, destination: str) -> None:
        words = ["src", source, "dst", destination, "dir", "fwd"]
        subprocess.run(["ip", "xfrm", "policy", "delete", *words], check=True)

    def plant_in_filter(self, what: str) -> None:
        # A chain that has rules cannot be deleted.
        lines = FILTER_CHANGES[what].nft
        made_again = re.findall(r"delete chain (\S+ \S+ \S+)", lines)
        flush = "".join(f"flush chain {chain}; " for chain in made_again)
        subprocess.run(["nft", f"{flush}{lines}"], check=True)

    def plant_master(self, name: str) -> None:
        with IPRoute() as netlink:
            if not netlink.link_lookup(ifname=OTHER_BRIDGE):
                netlink.link("add", ifname=OTHER_BRIDGE, kind="bridge")
            (master,), (own,) = netlink.link_lookup(ifname=OTHER_BRIDGE), netlink.link_lookup(ifname=name)
            netlink.link("set", index=own, master=master)

    def plant_foreign_objects(self) -> None:
        bridge = self.network.bridge
        mirror = ("--id=@to", "get", "port", bridge, "--", "--id=@spy", "create", "mirror", "name=spy")
        self._vsctl(*mirror, "select_all=1", "output_port=@to", "--", "set", "bridge", bridge, "mirrors=@spy")
        self._vsctl("set-controller", bridge, "tcp:127.0.0.1:9")

    def drop_datapath_type(self, datapath_type: str) -> None:
        assert datapath_type == "nonsense"

    @contextmanager
    def refusing(self, translation: AddressTranslation) -> Iterator[None]:
        # No module of this machine's kernel can be unloaded: a program in front of `nft` gives the kernel's answer.
        program = f"""#!/bin/sh
commands=$(cat)
case $commands in *'"{translation}":'*) echo "no module for {translation}" >&2; exit 1; esac
printf %s "$commands" | exec {shutil.which("nft")} "$@"
"""
        before = os.environ["PATH"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "nft")
            path.write_text(program)
            path.chmod(0o755)
            os.environ["PATH"] = f"{folder}:{before}"
            try:
                yield
            finally:
                os.environ["PATH"] = before

    def plant_without_datapath(self) -> None:
        database = f"--db=unix:{self.sockets}/db.sock"
        words = ["set", "bridge", self.network.bridge, "datapath_type=nonsense"]
        subprocess.run(["ovs-vsctl", database, *words], check=True, capture_output=True)

    def plant_vlan(self, tap: str, tag: int) -> None:
        self._vsctl("set", "port", tap, f"tag={tag}")

    def set_in_switch(self, tap: str, setting: SwitchSetting) -> None:
        bridge = self.network.bridge
        program, *words = setting.command.format(tap=tap, bridge=bridge).split()
        if program == "ovs-vsctl":
            self._vsctl(*words)
        else:
            address = f"unix:{self.sockets}/{bridge}.mgmt"
            words = [address if word == bridge else word for word in words]
            subprocess.run([program, "-O", "OpenFlow14", *words], check=True, capture_output=True)

    def _vsctl(self, *arguments: str) -> None:
        database = f"--db=unix:{self.sockets}/db.sock"
        subprocess.run(
            ["ovs-vsctl", database, "--no-wait", "--", *arguments], check=True, capture_output=True
        )

    def damage_reservation(self, tap: str, command: str) -> None:
        folder = self.leases_driver.folders[0]
        subprocess.run(["sh", "-ec", command.format(file=folder / tap, folder=folder)], check=True)

    def plant_dhcp_server(self) -> None:
        """Start a second DHCP server on the bridge, as an operator may. It has bound its socket once its process is in
        the background.
        """
        folder = self.leases_driver.folders[1]
        self._other_pid = folder / "other.pid"
        words = (
            f"--pid-file={self._other_pid}",
            f"--interface={self.network.bridge}",
            "--dhcp-range=10.100.1.200,10.100.1.220,255.255.255.0,60",
            f"--dhcp-leasefile={folder}/other.leases",
        )
        fixed = ("--conf-file=/dev/null", "--port=0", "--bind-dynamic")
        subprocess.run(["dnsmasq", *fixed, *words], check=True)

    def remove_dhcp_server(self) -> None:
        handle = os.pidfd_open(int(self._other_pid.read_text()))
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], 5.0)
        os.close(handle)

    def plant_manager(self, *targets: str) -> None:
        self._vsctl("del-manager", *(("--", "set-manager", *targets) if targets else ()))

    def plant_representor(self, name: str, folder: Path) -> int:
        """Add a veth pair in place of the representor of a virtual function. A frame sent at the far end of the pair
        represents a frame that the virtual function sends.
        """
        with IPRoute() as netlink:
            netlink.link("add", ifname=name, kind="veth", peer={"ifname": FAR_END})
            (number,) = netlink.link_lookup(ifname=name)
            netlink.link("set", ifname=FAR_END, state="up")
        self.bus = SysfsPci(switching(folder, number))
        return int(number)

    def lose_representor(self) -> None:
        self.bus = SysfsPci(Path("/sys"))
        with IPRoute() as netlink:
            for number in netlink.link_lookup(ifname=FAR_END):
                netlink.link("del", index=number)


@contextmanager
def real_host(node: LabNode, network: NodeNetwork) -> Iterator[Real]:
    """Yield network drivers for the lab node `node`. In the context, this thread and every thread and program that it
    starts use the node's network namespace.

    OVS's sockets are reached through the node's root folder. dnsmasq gives up root's rights, so its folder is
    accessible to every user.
    """
    with tempfile.TemporaryDirectory() as folder, open("/proc/self/ns/net") as home:
        Path(folder).chmod(0o755)
        netns.setns(f"/proc/{node.pid}/ns/net")
        host = Real(network, Path(f"/proc/{node.pid}/root/run/openvswitch"), Path(folder, "dhcp"))
        try:
            yield host
        finally:
            host.stop()
            netns.setns(home.fileno())


@contextmanager
def socket_of(pid: int) -> Iterator[socket.socket]:
    """Yield a UDP socket in the network namespace of process `pid`. A separate thread enters the namespace to create
    the socket.
    """
    made: list[socket.socket] = []

    def make() -> None:
        netns.setns(f"/proc/{pid}/ns/net")
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    with made[0] as far:
        far.settimeout(5.0)
        yield far
