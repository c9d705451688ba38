"""What another program does to a node behind its agent's back: a harm for each kind of drift, for tests and benches.

Each is lines of a shell on the node, with an operator's own tools. They name the slice by `$tap`, `$mac`, `$ip`,
`$cookie` (of its flows) and `$meter` (of what it sends, where it has a rate), its agent's run folder by `$run`, the tap
of a slot that is off by `$off`, and a link that the settings name by `$device`. `$function` is where sysfs shows the
PCI device of the slot that is off, and `$elsewhere` a CPU of the host that is not the machine's.

`machine.devices`, `slot.ungranted` and `slot.absent` have none: no lab has a PCI device that a machine could be given,
and the others the control plane names by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
_SPY: Final = "ip link show spy0 >/dev/null 2>&1 || ip tuntap add spy0 mode tap; ip link set spy0 up; "
_NO_SPY: Final = "ip link del spy0"
_MIRROR: Final = "tc filter add dev $tap ingress protocol all u32 match u32 0 0 action mirred egress"


@dataclass(frozen=True)
class Harm:
    """How it is `done`, and for what no agent can mend, how it is `undone`; kinds of the node's that come with it.

    One is `silent` of which nobody tells, though others of its kind are heard of: the survey finds it.
    """

    done: str
    undone: str = ":"
    beside: frozenset[DriftKind] = frozenset()
    silent: bool = False


def _nft(table: str, declared: str) -> str:
    """Have nft declare this in a table, which becomes part of it."""
    words = f"{table} {{ {declared} }}".replace("{ ", "{\n").replace("; ", ";\n").replace(" }", "\n}")
    return f'printf "%s\\n" "{words}" | nft -f -'


def _other(declared: str, family: str = "ip") -> Harm:
    return Harm(_nft(f"table {family} other", declared), f"nft delete table {family} other")


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
        "bridge.foreign_port": Harm(
            "ovs-vsctl add-port br-slice extra0 -- set interface extra0 type=internal"
        ),
        "gateway.address": Harm("ip address flush dev br-slice"),
        "gateway.forwarding": Harm("echo 0 > /proc/sys/net/ipv4/ip_forward"),
        "gateway.rules": Harm("nft flush chain inet sliceplane source_nat"),
        "gateway.dhcp": Harm("pkill -KILL dnsmasq"),
        "uplink.lost": Harm(
            "ip route show default > /tmp/default; ip route del default",
            "ip route add $(cat /tmp/default)",
        ),
        "device.absent": Harm("ip link del $device", "ip link add $device type bridge"),
        "foreign.dhcp_server": Harm(
            "dnsmasq --conf-file=/dev/null --pid-file=/tmp/other.pid --port=0 --interface=br-slice --bind-dynamic"
            " --dhcp-leasefile=/tmp/other.leases --dhcp-range=10.100.1.200,10.100.1.220,255.255.255.0,60",
            "kill $(cat /tmp/other.pid)",
        ),
        "foreign.switch_manager": Harm("ovs-vsctl set-manager ptcp:6640:127.0.0.1", "ovs-vsctl del-manager"),
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
        "foreign.rules": Harm(
            _nft(
                "table ip other",
                "chain pre { type nat hook prerouting priority -101; tcp dport 2299 dnat to $ip; }",
            ),
            "nft delete table ip other",
        ),
        "foreign.xfrm_policy": Harm(
            "ip xfrm policy add src 0.0.0.0/0 dst 10.100.1.0/24 dir fwd action block",
            "ip xfrm policy delete src 0.0.0.0/0 dst 10.100.1.0/24 dir fwd",
        ),
        "foreign.mirror": Harm(
            "ip tuntap add slice9 mode tap; "
            + _nft(
                "table netdev other",
                "chain spy { type filter hook ingress device $tap priority 0; dup to slice9; }",
            ),
            "nft delete table netdev other; ip link del slice9",
        ),
        "machine.absent": Harm(f"{_VIRSH} destroy $tap"),
        "machine.paused": Harm(f"{_VIRSH} suspend $tap"),
        "machine.frozen": Harm("pkill -STOP -f guest=$tap,"),
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
        "gateway.link": Harm("ip link set br-slice arp off"),
        "gateway.route": Harm("ip route del 10.100.1.0/24"),
        "gateway.neighbour": Harm("ip neigh replace $ip lladdr 02:00:00:00:00:99 dev br-slice nud permanent"),
        "uplink.silent": Harm(
            "ip route show default > /tmp/default; ip route replace default via 198.51.100.254 dev uplink0",
            "ip route replace $(cat /tmp/default)",
        ),
        "uplink.changed": Harm("ip link set uplink0 mtu 1400", "ip link set uplink0 mtu 1500"),
        "foreign.route": Harm("ip route add blackhole $ip/32", "ip route del blackhole $ip/32"),
        "foreign.policy_rule": Harm(
            "ip rule add priority 100 from $ip blackhole", "ip rule del priority 100"
        ),
        "foreign.upper_link": Harm("ip link add link br-slice name spy1 type macvlan", "ip link del spy1"),
        "foreign.uplink_qdisc": Harm(
            "tc qdisc add dev uplink0 root tbf rate 10mbit burst 10k latency 50ms",
            "tc qdisc del dev uplink0 root",
        ),
        "link.diverted": Harm(_SPY + f"tc qdisc add dev $tap clsact; {_MIRROR} mirror dev spy0", _NO_SPY),
        "slice.unreachable": replace(
            _other("chain others { type filter hook input priority 10; ip saddr $ip drop; }"),
            beside=frozenset({"foreign.rules"}),
        ),
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
        **{
            f"foreign.{name}": ("foreign.rules", harm)
            for name, harm in {
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
                "iptables": Harm(
                    "iptables -I FORWARD -i br-slice -m multiport -p tcp --dports 80,443 -j REJECT",
                    "nft delete table ip filter",
                ),
                "iptables_dnat": Harm(
                    "iptables -t nat -A PREROUTING -p tcp --dport 2299 -j DNAT --to-destination $ip:22",
                    "nft delete table ip nat",
                ),
                "iptables_legacy": Harm(
                    "iptables-legacy -I FORWARD -s $ip -j DROP", "iptables-legacy -F FORWARD", silent=True
                ),
                "iptables_legacy_policy": Harm(
                    "iptables-legacy -P FORWARD DROP", "iptables-legacy -P FORWARD ACCEPT", silent=True
                ),
                "iptables_legacy_dhcp": Harm(
                    "iptables-legacy -t raw -A PREROUTING -p udp --dport 67 -j DROP",
                    "iptables-legacy -t raw -F PREROUTING",
                    silent=True,
                ),
            }.items()
        },
        "foreign.redirected_to_a_tap": (
            "foreign.mirror",
            Harm(
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
            Harm(
                "ip xfrm policy add src 10.100.1.0/24 dst 0.0.0.0/0 dir out"
                " tmpl src 198.51.100.2 dst 198.51.100.3 proto esp mode tunnel",
                "ip xfrm policy delete src 10.100.1.0/24 dst 0.0.0.0/0 dir out",
            ),
        ),
        "rules.dormant": ("gateway.rules", Harm("nft add table inet sliceplane '{ flags dormant; }'")),
        "rules.policy_drop": (
            "gateway.rules",
            Harm("nft add chain inet sliceplane forward '{ policy drop; }'"),
        ),
        "rules.policy_drop_at_input": (
            "gateway.rules",
            Harm("nft add chain inet sliceplane input '{ policy drop; }'"),
        ),
        "rules.with_a_set": (
            "gateway.rules",
            Harm("nft add set inet sliceplane allowed '{ type ipv4_addr; }'"),
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
        "bridge.patched": (
            "bridge.foreign_port",
            Harm(
                "ovs-vsctl --may-exist add-br br-other -- set bridge br-other datapath_type=netdev"
                " -- add-port br-slice to-other -- set interface to-other type=patch options:peer=to-slice"
                " -- add-port br-other to-slice -- set interface to-slice type=patch options:peer=to-other",
                "ovs-vsctl --if-exists del-br br-other",
            ),
        ),
        "bridge.tunnelled": (
            "bridge.foreign_port",
            Harm(
                "ovs-vsctl add-port br-slice tunnel0"
                " -- set interface tunnel0 type=vxlan options:remote_ip=192.0.2.9"
            ),
        ),
        "bridge.spanning_tree": ("bridge.changed", Harm("ovs-vsctl set bridge br-slice stp_enable=true")),
        "bridge.rapid_spanning_tree": (
            "bridge.changed",
            Harm("ovs-vsctl set bridge br-slice rstp_enable=true"),
        ),
        "bridge.snooping": (
            "bridge.changed",
            Harm("ovs-vsctl set bridge br-slice mcast_snooping_enable=true"),
        ),
        "bridge.policed": (
            "bridge.changed",
            Harm("ovs-vsctl set interface br-slice ingress_policing_rate=64 ingress_policing_burst=8"),
        ),
        "bridge.without_fragments": (
            "bridge.changed",
            Harm("ovs-ofctl -O OpenFlow14 set-frags br-slice drop", silent=True),
        ),
        "bridge.mute": ("bridge.changed", Harm(f"{_FLOWS} mod-port br-slice 65534 no-forward")),
        "dhcp.frozen": ("gateway.dhcp", Harm("pkill -STOP dnsmasq")),
        "lease.unreadable": ("lease.unreserved", Harm(f"chmod 000 {_HOSTS}/$tap")),
        "lease.of_another_user": ("lease.unreserved", Harm(f"chown dnsmasq {_HOSTS}/$tap")),
        "lease.in_another_syntax": (
            "lease.unreserved",
            Harm(f"echo $mac,set:other,$ip,infinite > {_HOSTS}/$tap"),
        ),
        "lease.ignored": ("lease.unreserved", Harm(f"echo $mac,ignore >> {_HOSTS}/$tap")),
        "dhcp.reservation_of_no_slot": (
            "gateway.dhcp",
            Harm(f"echo 52:54:00:99:99:99,10.100.1.99 > {_HOSTS}/other; chmod 644 {_HOSTS}/other"),
        ),
        "dhcp.folder_unreadable": ("gateway.dhcp", Harm(f"chmod 700 {_HOSTS}")),
        "port.no_forward": ("port.changed", Harm(f"{_FLOWS} mod-port br-slice $tap no-forward")),
        "port.no_receive": ("port.changed", Harm(f"{_FLOWS} mod-port br-slice $tap no-receive")),
        "port.policed": (
            "port.changed",
            Harm("ovs-vsctl set interface $tap ingress_policing_rate=64 ingress_policing_burst=8"),
        ),
        "port.shaped": (
            "port.changed",
            Harm(
                "ovs-vsctl set port $tap qos=@q -- --id=@q create qos type=linux-htb"
                " other-config:max-rate=64000 queues=0=@r -- --id=@r create queue other-config:max-rate=64000"
            ),
        ),
        "port.bonded": (
            "port.changed",
            Harm(
                "ovs-vsctl del-port $tap -- add-bond br-slice $tap $tap extra1 -- set interface extra1 type=internal"
            ),
        ),
        "machine.displayed": (
            "machine.changed",
            Harm(
                f"{_VIRSH} qemu-monitor-command $tap "
                """'{"execute": "display-update", "arguments": {"type": "vnc", "addresses":"""
                """ [{"type": "inet", "host": "0.0.0.0", "port": "5977"}]}}'""",
                silent=True,
            ),
        ),
        "machine.given_card": (
            "machine.changed",
            Harm(
                f"{_VIRSH} qemu-monitor-command $tap --hmp 'netdev_add user,id=other';"
                f" {_VIRSH} qemu-monitor-command $tap --hmp"
                " 'device_add virtio-net-pci,netdev=other,id=other-card,bus=pci.4'",
                silent=True,
            ),
        ),
        "machine.debugged": (
            "machine.changed",
            Harm(f"{_VIRSH} qemu-monitor-command $tap --hmp 'gdbserver tcp:127.0.0.1:5978'", silent=True),
        ),
        "machine.throttled": (
            "machine.changed",
            Harm(f"{_VIRSH} blkdeviotune $tap vda --total-iops-sec 5 --live"),
        ),
        "link.redirected": (
            "link.diverted",
            Harm(_SPY + f"tc qdisc add dev $tap ingress; {_MIRROR} redirect dev spy0", _NO_SPY),
        ),
        "link.dropping": (
            "link.diverted",
            Harm("tc qdisc add dev $tap clsact; tc filter add dev $tap egress bpf da bytecode '1,6 0 0 2,'"),
        ),
        "link.under_macvlan": (
            "link.diverted",
            Harm("ip link add link $tap name spy1 type macvlan mode passthru; ip link set spy1 up"),
        ),
        "link.under_macvtap": ("link.diverted", Harm("ip link add link $tap name spy1 type macvtap")),
        "link.throttled": (
            "link.changed",
            Harm("tc qdisc add dev $tap root tbf rate 8kbit burst 2k latency 50ms"),
        ),
        # The kernel makes a local route for the address.
        "link.with_address_of_guest": (
            "link.changed",
            Harm("ip address add $ip/32 dev $tap", beside=frozenset({"foreign.route"})),
        ),
        # Open vSwitch gives a bridge the lowest MTU of its ports.
        "link.mtu": (
            "link.changed",
            Harm("ip link set $tap mtu 576", beside=frozenset({"gateway.link"})),
        ),
        "link.mac": ("link.changed", Harm("ip link set $tap address $mac")),
        "link.with_arp": ("link.changed", Harm("ip link set $tap arp on")),
        "link.localnet": (
            "link.changed",
            Harm("sysctl -qw net.ipv4.conf.$tap.route_localnet=1", silent=True),
        ),
        "gateway.no_local_route": (
            "gateway.route",
            Harm("ip route del local 10.100.1.1 dev br-slice table local"),
        ),
        "route.elsewhere": (
            "foreign.route",
            Harm("ip route add 10.100.1.0/25 via 198.51.100.1", "ip route del 10.100.1.0/25"),
        ),
        "route.of_another_link": (
            "foreign.route",
            Harm(
                "ip link add net7 type bridge; ip address add 10.100.1.77/25 dev net7; ip link set net7 up",
                "ip link del net7",
            ),
        ),
        "rule.to_another_table": (
            "foreign.policy_rule",
            Harm(
                "ip route add unreachable default table 77; ip rule add priority 100 from 10.100.1.0/24 table 77",
                "ip rule del priority 100; ip route flush table 77",
            ),
        ),
        # The node still reaches its control plane, over the management link.
        "rule.of_main_deleted": (
            "foreign.policy_rule",
            Harm(
                "ip rule add priority 98 to 10.213.0.0/16 table main; ip rule del priority 32766",
                "ip rule add priority 32766 table main; ip rule del priority 98",
            ),
        ),
        "uplink.mac": (
            "uplink.changed",
            Harm(
                "cat /sys/class/net/uplink0/address > /tmp/mac; ip link set uplink0 address 02:00:00:00:00:77",
                "ip link set uplink0 address $(cat /tmp/mac)",
            ),
        ),
        "uplink.without_arp": (
            "uplink.changed",
            Harm("ip link set uplink0 arp off", "ip link set uplink0 arp on"),
        ),
        "uplink.filtered": (
            "foreign.uplink_qdisc",
            Harm(
                "tc qdisc add dev uplink0 clsact;"
                " tc filter add dev uplink0 egress bpf da bytecode '1,6 0 0 2,'",
                "tc qdisc del dev uplink0 clsact",
            ),
        ),
        "gateway.throttled": (
            "gateway.link",
            Harm("tc qdisc add dev br-slice root tbf rate 8kbit burst 2k latency 50ms"),
        ),
        "gateway.filtered": (
            "gateway.link",
            Harm(
                "tc qdisc add dev br-slice clsact; tc filter add dev br-slice egress bpf da bytecode '1,6 0 0 2,'"
            ),
        ),
        "gateway.second_address": ("gateway.address", Harm("ip address add $ip/32 dev br-slice")),
        "gateway.mtu": ("gateway.link", Harm("ip link set br-slice mtu 576")),
        "gateway.no_replies": (
            "gateway.link",
            Harm("sysctl -qw net.ipv4.conf.br-slice.arp_ignore=8", silent=True),
        ),
    }
)
"""More ways to make some of them, by names of their own."""
