"""Fault injection for tests and benchmarks: for each kind of drift, a change of the node made without its agent.

Each fault is a sequence of shell commands on the node, which use an operator's tools. The commands may contain these
variables: `$tap`, `$mac` and `$ip` of the slice, `$cookie` of its flows, `$meter` of its outgoing traffic (if it has a
rate limit), `$run` for the agent's run folder, `$off` for the tap of a slot with a machine that is switched off,
`$device` for a link that the agent's settings name, `$function` for the sysfs path of the PCI device of the same slot
as `$off`, and `$elsewhere` for a CPU of the host that the slice's machine does not use.

The kinds of drift `machine.devices`, `slot.ungranted`, `slot.changed` and `slot.absent` have no fault: a lab has no
PCI device that a machine could use, and the control plane derives the three kinds of slots itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from events.values import Ipv4Address, MacAddress, SlotIndex
from node_agent.aspects.flows import cookie_of
from node_agent.aspects.meters import from_slice
from node_agent.host.slices import tap_of
from tasks.drift import DriftKind

_FLOWS: Final = "ovs-ofctl -O OpenFlow14"
_VIRSH: Final = "virsh -q -c qemu:///system"
_HOSTS: Final = "$run/dhcp/hosts"
_LEASES: Final = "$run/dhcp/leases"
_ANOTHER: Final = f"{_VIRSH} dumpxml $tap | sed -e '/<uuid>/d' -e '/<alias/d' -e '/<address type=.pci/d' -e '/<log /d' {{}} > /tmp/other.xml"
_KEEP_LEASES: Final = f"cp {_LEASES} /tmp/leases"
# dnsmasq reads its lease file at its start and writes it when a lease changes. The `|| :` ignores a missing process,
# because the agent may have ended dnsmasq at the same moment.
_ANOTHER_DNSMASQ: Final = "pkill -KILL dnsmasq || :"
_LEASES_BACK: Final = f"cp /tmp/leases {_LEASES}; {_ANOTHER_DNSMASQ}"
_SPY: Final = "ip link show spy0 >/dev/null 2>&1 || ip tuntap add spy0 mode tap; ip link set spy0 up; "
_NO_SPY: Final = "ip link del spy0"
_MIRROR: Final = "tc filter add dev $tap ingress protocol all u32 match u32 0 0 action mirred egress"


@dataclass(frozen=True)
class InjectedFault:
    """A change of a node, made without the node's agent, that causes one kind of drift."""

    inject_command: str
    """Shell commands that inject the fault."""
    revert_command: str = ":"
    """Shell commands that revert the fault, if the agent does not repair it."""
    also_causes: frozenset[DriftKind] = frozenset()
    """Further kinds of drift of the node that the fault causes."""
    unreported: bool = False
    """Whether the host reports no event about the fault, so that only the survey finds it."""


def _nft(table: str, declared: str) -> str:
    """Return a command that adds a declaration to an nftables table."""
    declaration = f"{table} {{ {declared} }}".replace("{ ", "{\n").replace("; ", ";\n").replace(" }", "\n}")
    return f'printf "%s\\n" "{declaration}" | nft -f -'


def _other(declared: str, family: str = "ip") -> InjectedFault:
    """Return an injected fault that adds a foreign nftables table with the given declarations."""
    return InjectedFault(_nft(f"table {family} other", declared), f"nft delete table {family} other")


def names(
    index: SlotIndex, mac: MacAddress, ip: Ipv4Address, run_folder: str, **further: str
) -> dict[str, str]:
    """Return the values of the variables in the faults' shell commands, by variable, for the slice in a slot and the
    agent's run folder. `further` contains the values of other variables.
    """
    switch_names = {"cookie": f"{cookie_of(index):#x}", "meter": str(from_slice(index))}
    return {"tap": tap_of(index), "mac": mac, "ip": ip, "run": run_folder, **switch_names, **further}


INJECTED_FAULTS: Final[Mapping[DriftKind, InjectedFault]] = MappingProxyType(
    {
        "host.unreadable": InjectedFault("pkill -STOP libvirtd", "pkill -CONT libvirtd"),
        "bridge.absent": InjectedFault("ovs-vsctl del-br br-slice"),
        "bridge.changed": InjectedFault("ovs-vsctl set-fail-mode br-slice standalone"),
        "bridge.foreign_flows": InjectedFault(
            f"{_FLOWS} add-flow br-slice cookie=0x77,priority=9,actions=NORMAL"
        ),
        "bridge.foreign_port": InjectedFault(
            "ovs-vsctl add-port br-slice extra0 -- set interface extra0 type=internal"
        ),
        "gateway.address": InjectedFault("ip address flush dev br-slice"),
        "gateway.forwarding": InjectedFault("echo 0 > /proc/sys/net/ipv4/ip_forward"),
        "gateway.rules": InjectedFault("nft flush chain inet sliceplane source_nat"),
        "gateway.dhcp": InjectedFault("pkill -KILL dnsmasq"),
        "uplink.lost": InjectedFault(
            "ip route show default > /tmp/default; ip route del default",
            "ip route add $(cat /tmp/default)",
        ),
        "device.absent": InjectedFault("ip link del $device", "ip link add $device type bridge"),
        "foreign.dhcp_server": InjectedFault(
            "dnsmasq --conf-file=/dev/null --pid-file=/tmp/other.pid --port=0 --interface=br-slice --bind-dynamic"
            " --dhcp-leasefile=/tmp/other.leases --dhcp-range=10.100.1.200,10.100.1.220,255.255.255.0,60",
            "kill $(cat /tmp/other.pid)",
        ),
        "foreign.switch_manager": InjectedFault(
            "ovs-vsctl set-manager ptcp:6640:127.0.0.1", "ovs-vsctl del-manager"
        ),
        "link.absent": InjectedFault("ip link del $tap"),
        "link.changed": InjectedFault("ip link set $tap down"),
        "lease.unreserved": InjectedFault(f"rm {_HOSTS}/$tap"),
        "lease.conflicting": InjectedFault(
            f"echo $mac,10.100.1.77 > {_HOSTS}/foreign; chmod 644 {_HOSTS}/foreign"
        ),
        "lease.foreign": InjectedFault(
            f'{_KEEP_LEASES}; echo "$(($(date +%s) + 3600)) 52:54:00:99:99:99 $ip thief *" > {_LEASES};'
            f" {_ANOTHER_DNSMASQ}",
            _LEASES_BACK,
            also_causes=frozenset({"gateway.dhcp"}),
        ),
        "lease.expired": InjectedFault(
            f"{_KEEP_LEASES}; : > {_LEASES}; {_ANOTHER_DNSMASQ}",
            _LEASES_BACK,
            also_causes=frozenset({"gateway.dhcp"}),
        ),
        "port.absent": InjectedFault("ovs-vsctl del-port $tap"),
        "port.changed": InjectedFault(
            "ovs-vsctl --may-exist add-br br-other -- set bridge br-other datapath_type=netdev;"
            " ovs-vsctl del-port $tap -- add-port br-other $tap",
            "ovs-vsctl --if-exists del-br br-other",
        ),
        "port.flows": InjectedFault(f"{_FLOWS} del-flows br-slice cookie=$cookie/-1"),
        "port.meter": InjectedFault(
            f"{_FLOWS} mod-meter br-slice meter=$meter,kbps,burst,band=type=drop,rate=9,burst_size=9"
        ),
        "rules.changed": InjectedFault("nft insert rule inet sliceplane from_slices accept comment $tap"),
        "ingress.changed": InjectedFault("nft flush chain inet sliceplane mapping"),
        "ingress.foreign": InjectedFault(
            'nft "insert rule inet sliceplane mapping tcp dport 2299 dnat ip to $ip:22 comment \\"$tap foreign\\""'
        ),
        "foreign.rules": InjectedFault(
            _nft(
                "table ip other",
                "chain pre { type nat hook prerouting priority -101; tcp dport 2299 dnat to $ip; }",
            ),
            "nft delete table ip other",
        ),
        "foreign.xfrm_policy": InjectedFault(
            "ip xfrm policy add src 0.0.0.0/0 dst 10.100.1.0/24 dir fwd action block",
            "ip xfrm policy delete src 0.0.0.0/0 dst 10.100.1.0/24 dir fwd",
        ),
        "foreign.mirror": InjectedFault(
            "ip tuntap add slice9 mode tap; "
            + _nft(
                "table netdev other",
                "chain spy { type filter hook ingress device $tap priority 0; dup to slice9; }",
            ),
            "nft delete table netdev other; ip link del slice9",
        ),
        "machine.absent": InjectedFault(f"{_VIRSH} destroy $tap"),
        "machine.paused": InjectedFault(f"{_VIRSH} suspend $tap"),
        "machine.frozen": InjectedFault("pkill -STOP -f guest=$tap,"),
        "machine.changed": InjectedFault(
            _ANOTHER.format('-e "s/$mac/52:54:00:99:99:99/"')
            # One virsh call runs both commands, or the agent would be faster. The `|| :` ignores the error if the agent
            # ends the new domain before it has started.
            + f"""; {_VIRSH} "destroy $tap; create /tmp/other.xml" || :"""
        ),
        "machine.unplugged": InjectedFault("ip link del $tap"),
        "machine.duplicate": InjectedFault(
            "ip tuntap add foreign0 mode tap 2>/dev/null || :; "
            + _ANOTHER.format(
                """-e "s,<name>$tap</name>,<name>foreign</name>," -e "s/dev='$tap'/dev='foreign0'/" """
            )
            + f"; {_VIRSH} create /tmp/other.xml || :",
            "ip link del foreign0",
        ),
        "machine.pins": InjectedFault(f"{_VIRSH} vcpupin $tap 0 $elsewhere --live"),
        "machine.seed": InjectedFault("rm $run/disks/$tap/seed-*"),
        "slot.device": InjectedFault("mv $function /tmp/function", "mv /tmp/function $function"),
        "slot.occupied": InjectedFault("ip tuntap add $off mode tap"),
        "gateway.link": InjectedFault("ip link set br-slice arp off"),
        "gateway.route": InjectedFault("ip route del 10.100.1.0/24"),
        "gateway.neighbour": InjectedFault(
            "ip neigh replace $ip lladdr 02:00:00:00:00:99 dev br-slice nud permanent"
        ),
        "uplink.unresponsive": InjectedFault(
            "ip route show default > /tmp/default; ip route replace default via 198.51.100.254 dev uplink0",
            "ip route replace $(cat /tmp/default)",
        ),
        "uplink.changed": InjectedFault("ip link set uplink0 mtu 1400", "ip link set uplink0 mtu 1500"),
        "foreign.route": InjectedFault("ip route add blackhole $ip/32", "ip route del blackhole $ip/32"),
        "foreign.policy_rule": InjectedFault(
            "ip rule add priority 100 from $ip blackhole", "ip rule del priority 100"
        ),
        "foreign.upper_link": InjectedFault(
            "ip link add link br-slice name spy1 type macvlan", "ip link del spy1"
        ),
        "foreign.uplink_qdisc": InjectedFault(
            "tc qdisc add dev uplink0 root tbf rate 10mbit burst 10k latency 50ms",
            "tc qdisc del dev uplink0 root",
        ),
        "link.diverted": InjectedFault(
            _SPY + f"tc qdisc add dev $tap clsact; {_MIRROR} mirror dev spy0", _NO_SPY
        ),
        "slice.unreachable": replace(
            _other("chain others { type filter hook input priority 10; ip saddr $ip drop; }"),
            also_causes=frozenset({"foreign.rules"}),
        ),
    }
)
"""For each kind of drift, its primary injected fault: a change of the node that causes drift of this kind."""

OTHER_INJECTED_FAULTS: Final[Mapping[str, tuple[DriftKind, InjectedFault]]] = MappingProxyType(
    {
        "bridge.mirrored": (
            "bridge.changed",
            InjectedFault(
                "ovs-vsctl --id=@to get port br-slice -- --id=@spy create mirror name=spy select_all=1"
                " output_port=@to -- set bridge br-slice mirrors=@spy"
            ),
        ),
        "bridge.controlled": (
            "bridge.changed",
            InjectedFault("ovs-vsctl set-controller br-slice tcp:127.0.0.1:9"),
        ),
        "bridge.sampled": (
            "bridge.changed",
            InjectedFault(
                "ovs-vsctl --id=@spy create sflow agent=lo targets='\"127.0.0.1:9\"'"
                " -- set bridge br-slice sflow=@spy"
            ),
        ),
        **{
            f"foreign.{name}": ("foreign.rules", fault)
            for name, fault in {
                "dnat_from_ingress": _other(
                    "chain c { type nat hook prerouting priority -101; tcp dport 1-65535 dnat to 192.0.2.77; }"
                ),
                "drop_in_forward": _other(
                    "chain c { type filter hook forward priority 9; ip saddr $ip drop; }"
                ),
                "firewall_with_policy_drop": _other(
                    "chain c { type filter hook forward priority 9; policy drop;"
                    " ct state established,related accept; }",
                    family="inet",
                ),
                "dhcp_dropped": _other(
                    "chain c { type filter hook input priority -9; iifname br-slice udp dport 67 drop; }"
                ),
                "dhcp_answers_dropped": _other(
                    "chain c { type filter hook output priority 9; udp sport 67 drop; }"
                ),
                "readiness_rejected": _other(
                    "chain c { type filter hook input priority 9; iifname br-slice meta l4proto tcp reject; }"
                ),
                "not_tracked": _other(
                    "chain c { type filter hook prerouting priority -301; ip saddr 10.0.0.0/8 notrack; }"
                ),
                "stolen_by_proxy": _other(
                    "chain c { type filter hook prerouting priority -149; iifname br-slice meta l4proto tcp"
                    " tproxy to 127.0.0.1:3128; }"
                ),
                "redirected_to_host": _other(
                    "chain c { type nat hook prerouting priority -101; iifname br-slice tcp dport 80 redirect to :3128; }"
                ),
                "another_source": _other(
                    "chain c { type nat hook postrouting priority 99; ip saddr 10.100.1.0/24 snat to 198.51.100.99; }"
                ),
                "rewritten": _other(
                    "chain c { type filter hook forward priority 9; ip daddr $ip ip daddr set 192.0.2.1; }"
                ),
                "dropped_at_uplink": _other(
                    "chain c { type filter hook ingress device uplink0 priority 0; udp dport 1024-65535 drop; }",
                    family="netdev",
                ),
                "dropped_at_tap": _other(
                    "chain c { type filter hook ingress device $tap priority 0; ip protocol icmp drop; }",
                    family="netdev",
                ),
                "copied_to_a_dummy": _other(
                    "chain c { type filter hook ingress device br-slice priority 0; dup to lo; }",
                    family="netdev",
                ),
                "arp_dropped": _other(
                    "chain c { type filter hook input priority 0; iifname br-slice drop; }", family="arp"
                ),
                "iptables": InjectedFault(
                    "iptables -I FORWARD -i br-slice -m multiport -p tcp --dports 80,443 -j REJECT",
                    "nft delete table ip filter",
                ),
                "iptables_dnat": InjectedFault(
                    "iptables -t nat -A PREROUTING -p tcp --dport 2299 -j DNAT --to-destination $ip:22",
                    "nft delete table ip nat",
                ),
                "iptables_legacy": InjectedFault(
                    "iptables-legacy -I FORWARD -s $ip -j DROP", "iptables-legacy -F FORWARD", unreported=True
                ),
                "iptables_legacy_policy": InjectedFault(
                    "iptables-legacy -P FORWARD DROP", "iptables-legacy -P FORWARD ACCEPT", unreported=True
                ),
                "iptables_legacy_dhcp": InjectedFault(
                    "iptables-legacy -t raw -A PREROUTING -p udp --dport 67 -j DROP",
                    "iptables-legacy -t raw -F PREROUTING",
                    unreported=True,
                ),
            }.items()
        },
        "foreign.redirected_to_a_tap": (
            "foreign.mirror",
            InjectedFault(
                "ip tuntap add slice9 mode tap; ip link set slice9 up; "
                + _nft(
                    "table netdev other",
                    "chain spy { type filter hook ingress device slice9 priority 0; ip version 4 fwd to $tap; }",
                ),
                "nft delete table netdev other; ip link del slice9",
            ),
        ),
        "foreign.tunnel": (
            "foreign.xfrm_policy",
            InjectedFault(
                "ip xfrm policy add src 10.100.1.0/24 dst 0.0.0.0/0 dir out"
                " tmpl src 198.51.100.2 dst 198.51.100.3 proto esp mode tunnel",
                "ip xfrm policy delete src 10.100.1.0/24 dst 0.0.0.0/0 dir out",
            ),
        ),
        "rules.dormant": (
            "gateway.rules",
            InjectedFault("nft add table inet sliceplane '{ flags dormant; }'"),
        ),
        "rules.policy_drop": (
            "gateway.rules",
            InjectedFault("nft add chain inet sliceplane forward '{ policy drop; }'"),
        ),
        "rules.policy_drop_at_input": (
            "gateway.rules",
            InjectedFault("nft add chain inet sliceplane input '{ policy drop; }'"),
        ),
        "rules.with_a_set": (
            "gateway.rules",
            InjectedFault("nft add set inet sliceplane allowed '{ type ipv4_addr; }'"),
        ),
        "mapping.let_in": (
            "ingress.foreign",
            InjectedFault(
                'nft "insert rule inet sliceplane mapped ip daddr $ip accept comment \\"$tap foreign\\""'
            ),
        ),
        "mapping.unowned": (
            "gateway.rules",
            InjectedFault("nft insert rule inet sliceplane mapping tcp dport 2299 dnat ip to $ip:22"),
        ),
        "forwarding.of_bridge": (
            "gateway.forwarding",
            InjectedFault("echo 0 > /proc/sys/net/ipv4/conf/br-slice/forwarding"),
        ),
        "forwarding.of_uplink": (
            "gateway.forwarding",
            InjectedFault("echo 0 > /proc/sys/net/ipv4/conf/uplink0/forwarding"),
        ),
        "link.enslaved": (
            "link.changed",
            InjectedFault(
                "ip link add br-thief type bridge; ip link set $tap master br-thief", "ip link del br-thief"
            ),
        ),
        "port.tagged": ("port.changed", InjectedFault("ovs-vsctl set port $tap tag=7")),
        "machine.given_disk": (
            "machine.changed",
            InjectedFault(
                "truncate -s 1M /tmp/disk; chmod 666 /tmp/disk;"
                f" {_VIRSH} attach-disk $tap /tmp/disk vdb --mode readonly"
            ),
        ),
        "machine.cut_off": (
            "machine.changed",
            InjectedFault(f"{_VIRSH} domif-setlink $tap $mac down", unreported=True),
        ),
        "machine.shown": (
            "machine.changed",
            InjectedFault(
                f"{_VIRSH} dumpxml $tap | sed -e '/<alias/d' -e '/<address type=.pci/d' -e '/<log /d'"
                """ -e "s/<listen type='none'/<listen type='address' address='0.0.0.0'/" > /tmp/other.xml;"""
                f""" {_VIRSH} "destroy $tap; create /tmp/other.xml" || :"""
            ),
        ),
        "bridge.patched": (
            "bridge.foreign_port",
            InjectedFault(
                "ovs-vsctl --may-exist add-br br-other -- set bridge br-other datapath_type=netdev"
                " -- add-port br-slice to-other -- set interface to-other type=patch options:peer=to-slice"
                " -- add-port br-other to-slice -- set interface to-slice type=patch options:peer=to-other",
                "ovs-vsctl --if-exists del-br br-other",
            ),
        ),
        "bridge.tunnelled": (
            "bridge.foreign_port",
            InjectedFault(
                "ovs-vsctl add-port br-slice tunnel0"
                " -- set interface tunnel0 type=vxlan options:remote_ip=192.0.2.9"
            ),
        ),
        "bridge.spanning_tree": (
            "bridge.changed",
            InjectedFault("ovs-vsctl set bridge br-slice stp_enable=true"),
        ),
        "bridge.rapid_spanning_tree": (
            "bridge.changed",
            InjectedFault("ovs-vsctl set bridge br-slice rstp_enable=true"),
        ),
        "bridge.snooping": (
            "bridge.changed",
            InjectedFault("ovs-vsctl set bridge br-slice mcast_snooping_enable=true"),
        ),
        "bridge.policed": (
            "bridge.changed",
            InjectedFault(
                "ovs-vsctl set interface br-slice ingress_policing_rate=64 ingress_policing_burst=8"
            ),
        ),
        "bridge.without_fragments": (
            "bridge.changed",
            InjectedFault("ovs-ofctl -O OpenFlow14 set-frags br-slice drop", unreported=True),
        ),
        "bridge.mute": ("bridge.changed", InjectedFault(f"{_FLOWS} mod-port br-slice 65534 no-forward")),
        "dhcp.frozen": ("gateway.dhcp", InjectedFault("pkill -STOP dnsmasq")),
        "lease.unreadable": ("lease.unreserved", InjectedFault(f"chmod 000 {_HOSTS}/$tap")),
        "lease.of_another_user": ("lease.unreserved", InjectedFault(f"chown dnsmasq {_HOSTS}/$tap")),
        "lease.in_another_syntax": (
            "lease.unreserved",
            InjectedFault(f"echo $mac,set:other,$ip,infinite > {_HOSTS}/$tap"),
        ),
        "lease.ignored": ("lease.unreserved", InjectedFault(f"echo $mac,ignore >> {_HOSTS}/$tap")),
        "dhcp.reservation_of_no_slot": (
            "gateway.dhcp",
            InjectedFault(f"echo 52:54:00:99:99:99,10.100.1.99 > {_HOSTS}/other; chmod 644 {_HOSTS}/other"),
        ),
        "dhcp.folder_unreadable": ("gateway.dhcp", InjectedFault(f"chmod 700 {_HOSTS}")),
        "port.no_forward": ("port.changed", InjectedFault(f"{_FLOWS} mod-port br-slice $tap no-forward")),
        "port.no_receive": ("port.changed", InjectedFault(f"{_FLOWS} mod-port br-slice $tap no-receive")),
        "port.policed": (
            "port.changed",
            InjectedFault("ovs-vsctl set interface $tap ingress_policing_rate=64 ingress_policing_burst=8"),
        ),
        "port.shaped": (
            "port.changed",
            InjectedFault(
                "ovs-vsctl set port $tap qos=@q -- --id=@q create qos type=linux-htb"
                " other-config:max-rate=64000 queues=0=@r -- --id=@r create queue other-config:max-rate=64000"
            ),
        ),
        "port.bonded": (
            "port.changed",
            InjectedFault(
                "ovs-vsctl del-port $tap -- add-bond br-slice $tap $tap extra1 -- set interface extra1 type=internal"
            ),
        ),
        "machine.displayed": (
            "machine.changed",
            InjectedFault(
                f"{_VIRSH} qemu-monitor-command $tap "
                """'{"execute": "display-update", "arguments": {"type": "vnc", "addresses":"""
                """ [{"type": "inet", "host": "0.0.0.0", "port": "5977"}]}}'""",
                unreported=True,
            ),
        ),
        "machine.given_card": (
            "machine.changed",
            InjectedFault(
                f"{_VIRSH} qemu-monitor-command $tap --hmp 'netdev_add user,id=other';"
                f" {_VIRSH} qemu-monitor-command $tap --hmp"
                " 'device_add virtio-net-pci,netdev=other,id=other-card,bus=pci.4'",
                unreported=True,
            ),
        ),
        "machine.debugged": (
            "machine.changed",
            InjectedFault(
                f"{_VIRSH} qemu-monitor-command $tap --hmp 'gdbserver tcp:127.0.0.1:5978'", unreported=True
            ),
        ),
        "machine.throttled": (
            "machine.changed",
            InjectedFault(f"{_VIRSH} blkdeviotune $tap vda --total-iops-sec 5 --live"),
        ),
        "link.redirected": (
            "link.diverted",
            InjectedFault(_SPY + f"tc qdisc add dev $tap ingress; {_MIRROR} redirect dev spy0", _NO_SPY),
        ),
        "link.dropping": (
            "link.diverted",
            InjectedFault(
                "tc qdisc add dev $tap clsact; tc filter add dev $tap egress bpf da bytecode '1,6 0 0 2,'"
            ),
        ),
        "link.under_macvlan": (
            "link.diverted",
            InjectedFault("ip link add link $tap name spy1 type macvlan mode passthru; ip link set spy1 up"),
        ),
        "link.under_macvtap": (
            "link.diverted",
            InjectedFault("ip link add link $tap name spy1 type macvtap"),
        ),
        "link.throttled": (
            "link.changed",
            InjectedFault("tc qdisc add dev $tap root tbf rate 8kbit burst 2k latency 50ms"),
        ),
        # The kernel also adds a local route for the address.
        "link.with_address_of_guest": (
            "link.changed",
            InjectedFault("ip address add $ip/32 dev $tap", also_causes=frozenset({"foreign.route"})),
        ),
        # Open vSwitch sets the MTU of a bridge to the lowest MTU of its ports.
        "link.mtu": (
            "link.changed",
            InjectedFault("ip link set $tap mtu 576", also_causes=frozenset({"gateway.link"})),
        ),
        "link.mac": ("link.changed", InjectedFault("ip link set $tap address $mac")),
        "link.with_arp": ("link.changed", InjectedFault("ip link set $tap arp on")),
        "link.localnet": (
            "link.changed",
            InjectedFault("sysctl -qw net.ipv4.conf.$tap.route_localnet=1", unreported=True),
        ),
        "gateway.no_local_route": (
            "gateway.route",
            InjectedFault("ip route del local 10.100.1.1 dev br-slice table local"),
        ),
        "route.elsewhere": (
            "foreign.route",
            InjectedFault("ip route add 10.100.1.0/25 via 198.51.100.1", "ip route del 10.100.1.0/25"),
        ),
        "route.of_another_link": (
            "foreign.route",
            InjectedFault(
                "ip link add net7 type bridge; ip address add 10.100.1.77/25 dev net7; ip link set net7 up",
                "ip link del net7",
            ),
        ),
        "rule.to_another_table": (
            "foreign.policy_rule",
            InjectedFault(
                "ip route add unreachable default table 77; ip rule add priority 100 from 10.100.1.0/24 table 77",
                "ip rule del priority 100; ip route flush table 77",
            ),
        ),
        # The first rule keeps the management link working, over which the node reaches its control plane.
        "rule.of_main_deleted": (
            "foreign.policy_rule",
            InjectedFault(
                "ip rule add priority 98 to 10.213.0.0/16 table main; ip rule del priority 32766",
                "ip rule add priority 32766 table main; ip rule del priority 98",
            ),
        ),
        "uplink.mac": (
            "uplink.changed",
            InjectedFault(
                "cat /sys/class/net/uplink0/address > /tmp/mac; ip link set uplink0 address 02:00:00:00:00:77",
                "ip link set uplink0 address $(cat /tmp/mac)",
            ),
        ),
        "uplink.without_arp": (
            "uplink.changed",
            InjectedFault("ip link set uplink0 arp off", "ip link set uplink0 arp on"),
        ),
        "uplink.filtered": (
            "foreign.uplink_qdisc",
            InjectedFault(
                "tc qdisc add dev uplink0 clsact;"
                " tc filter add dev uplink0 egress bpf da bytecode '1,6 0 0 2,'",
                "tc qdisc del dev uplink0 clsact",
            ),
        ),
        "gateway.throttled": (
            "gateway.link",
            InjectedFault("tc qdisc add dev br-slice root tbf rate 8kbit burst 2k latency 50ms"),
        ),
        "gateway.filtered": (
            "gateway.link",
            InjectedFault(
                "tc qdisc add dev br-slice clsact; tc filter add dev br-slice egress bpf da bytecode '1,6 0 0 2,'"
            ),
        ),
        "gateway.second_address": ("gateway.address", InjectedFault("ip address add $ip/32 dev br-slice")),
        "gateway.mtu": ("gateway.link", InjectedFault("ip link set br-slice mtu 576")),
        "gateway.no_replies": (
            "gateway.link",
            InjectedFault("sysctl -qw net.ipv4.conf.br-slice.arp_ignore=8", unreported=True),
        ),
    }
)
"""Further faults by name, each with the kind of drift that it causes."""
