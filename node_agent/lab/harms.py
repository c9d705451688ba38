"""What another program does to a node behind its agent's back: a harm for each kind of drift, for tests and benches.

Each is lines of a shell on the node, with an operator's own tools. They name the slice by `$tap`, `$mac`, `$ip`,
`$cookie` (of its flows) and `$meter` (of what it sends, where it has a rate), its agent's run folder by `$run`, the tap
of a slot that is off by `$off`, and a link that the settings name by `$device`. `$function` is where sysfs shows the
PCI device of the slot that is off, and `$elsewhere` a CPU of the host that is not the machine's.

`machine.devices`, `slot.ungranted` and `slot.absent` have none: no lab has a PCI device that a machine could be given,
and the others the control plane names by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from events.values import Ipv4Address, MacAddress, SlotIndex
from node_agent.flows import cookie_of
from node_agent.meters import from_slice
from node_agent.slices import tap_of
from tasks.drift import DriftKind

_FLOWS: Final = "ovs-ofctl -O OpenFlow14"
_VIRSH: Final = "virsh -q -c qemu:///system"
_HOSTS: Final = "$run/dhcp/hosts"
_LEASES: Final = "$run/dhcp/leases"
_ANOTHER: Final = f"{_VIRSH} dumpxml $tap | sed -e '/<uuid>/d' -e '/<alias/d' -e '/<address type=.pci/d' -e '/<log /d' {{}} > /tmp/other.xml"
_KEEP_LEASES: Final = f"cp {_LEASES} /tmp/leases"
# dnsmasq reads its file when it starts, and writes it when a lease changes. The agent may have just ended it itself.
_ANOTHER_DNSMASQ: Final = "pkill -KILL dnsmasq || :"
_LEASES_BACK: Final = f"cp /tmp/leases {_LEASES}; {_ANOTHER_DNSMASQ}"


@dataclass(frozen=True)
class Harm:
    """How it is `done`, and for what no agent can mend, how it is `undone`; kinds of the node's that come with it.

    One is `silent` of which nobody tells, though others of its kind are heard of: the survey finds it.
    """

    done: str
    undone: str = ":"
    beside: frozenset[DriftKind] = frozenset()
    silent: bool = False


def names(
    index: SlotIndex, mac: MacAddress, ip: Ipv4Address, run_folder: str, **further: str
) -> dict[str, str]:
    """What the lines name, for a slice in this slot of an agent with this run folder."""
    of_switch = {"cookie": f"{cookie_of(index):#x}", "meter": str(from_slice(index))}
    return {"tap": tap_of(index), "mac": mac, "ip": ip, "run": run_folder, **of_switch, **further}


HARMS: Final[Mapping[DriftKind, Harm]] = MappingProxyType(
    {
        "host.unreadable": Harm("pkill -STOP libvirtd", "pkill -CONT libvirtd"),
        "bridge.absent": Harm("ovs-vsctl del-br br-slice"),
        "bridge.changed": Harm("ovs-vsctl set-fail-mode br-slice standalone"),
        "bridge.foreign_flows": Harm(f"{_FLOWS} add-flow br-slice cookie=0x77,priority=9,actions=NORMAL"),
        "gateway.address": Harm("ip address flush dev br-slice"),
        "gateway.forwarding": Harm("echo 0 > /proc/sys/net/ipv4/ip_forward"),
        "gateway.rules": Harm("nft flush chain inet sliceplane source_nat"),
        "gateway.dhcp": Harm("pkill -KILL dnsmasq"),
        "uplink.lost": Harm(
            "ip route show default > /tmp/default; ip route del default",
            "ip route add $(cat /tmp/default)",
        ),
        "device.absent": Harm("ip link del $device", "ip link add $device type bridge"),
        "link.absent": Harm("ip link del $tap"),
        "link.changed": Harm("ip link set $tap down"),
        "lease.unreserved": Harm(f"rm {_HOSTS}/$tap"),
        "lease.rival": Harm(f"echo $mac,10.100.1.77 > {_HOSTS}/rival; chmod 644 {_HOSTS}/rival"),
        "lease.foreign": Harm(
            f'{_KEEP_LEASES}; echo "$(($(date +%s) + 3600)) 52:54:00:99:99:99 $ip thief *" > {_LEASES};'
            f" {_ANOTHER_DNSMASQ}",
            _LEASES_BACK,
            beside=frozenset({"gateway.dhcp"}),
        ),
        "lease.expired": Harm(
            f"{_KEEP_LEASES}; : > {_LEASES}; {_ANOTHER_DNSMASQ}",
            _LEASES_BACK,
            beside=frozenset({"gateway.dhcp"}),
        ),
        "port.absent": Harm("ovs-vsctl del-port $tap"),
        "port.changed": Harm(
            "ovs-vsctl --may-exist add-br br-other -- set bridge br-other datapath_type=netdev;"
            " ovs-vsctl del-port $tap -- add-port br-other $tap",
            "ovs-vsctl --if-exists del-br br-other",
        ),
        "port.flows": Harm(f"{_FLOWS} del-flows br-slice cookie=$cookie/-1"),
        "port.meter": Harm(
            f"{_FLOWS} mod-meter br-slice meter=$meter,kbps,burst,band=type=drop,rate=9,burst_size=9"
        ),
        "rules.changed": Harm("nft insert rule inet sliceplane from_slices accept comment $tap"),
        "mapping.changed": Harm("nft flush chain inet sliceplane mapping"),
        "mapping.foreign": Harm(
            'nft "insert rule inet sliceplane mapping tcp dport 2299 dnat ip to $ip:22 comment \\"$tap foreign\\""'
        ),
        "rules.rival": Harm(
            "nft add table ip other; nft 'add chain ip other pre { type nat hook prerouting priority -101; }';"
            " nft add rule ip other pre tcp dport 2299 dnat to $ip",
            "nft delete table ip other",
        ),
        "machine.absent": Harm(f"{_VIRSH} destroy $tap"),
        "machine.paused": Harm(f"{_VIRSH} suspend $tap"),
        "machine.changed": Harm(
            _ANOTHER.format('-e "s/$mac/52:54:00:99:99:99/"')
            # By one virsh, or the agent is faster; it may still end the other before that came up.
            + f"""; {_VIRSH} "destroy $tap; create /tmp/other.xml" || :"""
        ),
        "machine.unplugged": Harm("ip link del $tap"),
        "machine.rival": Harm(
            "ip tuntap add rival0 mode tap 2>/dev/null || :; "
            + _ANOTHER.format(
                """-e "s,<name>$tap</name>,<name>rival</name>," -e "s/dev='$tap'/dev='rival0'/" """
            )
            + f"; {_VIRSH} create /tmp/other.xml || :",
            "ip link del rival0",
        ),
        "machine.pins": Harm(f"{_VIRSH} vcpupin $tap 0 $elsewhere --live"),
        "machine.seed": Harm("rm $run/disks/$tap/seed-*"),
        "slot.device": Harm("mv $function /tmp/function", "mv /tmp/function $function"),
        "slot.occupied": Harm("ip tuntap add $off mode tap"),
    }
)
"""One for each kind."""

OTHER_HARMS: Final[Mapping[str, tuple[DriftKind, Harm]]] = MappingProxyType(
    {
        "bridge.mirrored": (
            "bridge.changed",
            Harm(
                "ovs-vsctl --id=@to get port br-slice -- --id=@spy create mirror name=spy select_all=1"
                " output_port=@to -- set bridge br-slice mirrors=@spy"
            ),
        ),
        "bridge.controlled": ("bridge.changed", Harm("ovs-vsctl set-controller br-slice tcp:127.0.0.1:9")),
        "bridge.sampled": (
            "bridge.changed",
            Harm(
                "ovs-vsctl --id=@spy create sflow agent=lo targets='\"127.0.0.1:9\"'"
                " -- set bridge br-slice sflow=@spy"
            ),
        ),
        "rules.rival_from_way": (
            "rules.rival",
            Harm(
                "nft add table ip other; nft 'add chain ip other pre { type nat hook prerouting priority -101; }';"
                " nft add rule ip other pre tcp dport 1-65535 dnat to 192.0.2.77",
                "nft delete table ip other",
            ),
        ),
        "mapping.let_in": (
            "mapping.foreign",
            Harm('nft "insert rule inet sliceplane mapped ip daddr $ip accept comment \\"$tap foreign\\""'),
        ),
        "mapping.unowned": (
            "gateway.rules",
            Harm("nft insert rule inet sliceplane mapping tcp dport 2299 dnat ip to $ip:22"),
        ),
        "forwarding.of_bridge": (
            "gateway.forwarding",
            Harm("echo 0 > /proc/sys/net/ipv4/conf/br-slice/forwarding"),
        ),
        "forwarding.of_uplink": (
            "gateway.forwarding",
            Harm("echo 0 > /proc/sys/net/ipv4/conf/uplink0/forwarding"),
        ),
        "link.enslaved": (
            "link.changed",
            Harm(
                "ip link add br-thief type bridge; ip link set $tap master br-thief", "ip link del br-thief"
            ),
        ),
        "port.tagged": ("port.changed", Harm("ovs-vsctl set port $tap tag=7")),
        "machine.given_disk": (
            "machine.changed",
            Harm(
                "truncate -s 1M /tmp/disk; chmod 666 /tmp/disk;"
                f" {_VIRSH} attach-disk $tap /tmp/disk vdb --mode readonly"
            ),
        ),
        "machine.cut_off": ("machine.changed", Harm(f"{_VIRSH} domif-setlink $tap $mac down", silent=True)),
        "machine.shown": (
            "machine.changed",
            Harm(
                f"{_VIRSH} dumpxml $tap | sed -e '/<alias/d' -e '/<address type=.pci/d' -e '/<log /d'"
                """ -e "s/<listen type='none'/<listen type='address' address='0.0.0.0'/" > /tmp/other.xml;"""
                f""" {_VIRSH} "destroy $tap; create /tmp/other.xml" || :"""
            ),
        ),
    }
)
"""More ways to make some of them, by names of their own."""
