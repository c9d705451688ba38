"""Tests of packet filter rules of other programs: rules that can match the slices' traffic, and the usual rules of a
host, which do not.
"""

import json
from typing import Any, Final

import pytest

from events.values import Ipv4Address, Ipv4Subnet
from node_agent.aspects.ingress_rules import rules_of
from node_agent.packets.foreign_rules import (
    Finding,
    ForeignRule,
    ForeignTable,
    ForeignTables,
    findings,
    mirrored,
    public_endpoints,
    reported,
)
from node_agent.packets.iptables import tables
from node_agent.packets.rules import MAPPING, Chain, Policy
from node_agent.packets.traffic import NodeView, PublicEndpoint
from tasks.orders import Mapping
from tests.contract.network.slices import SUBNET, address_mapping, network, port_mapping

SLICE: Final = "10.100.1.10"
UPLINK_ADDRESS: Final = Ipv4Address("203.0.113.5")
SSH: Final = port_mapping(1, "198.51.100.7", 2222)
ALL_PORTS: Final = address_mapping(2, "198.51.100.8")
Body = list[dict[str, Any]]


def own(*mappings: Mapping) -> tuple[PublicEndpoint, ...]:
    slot = network(0)
    rules = (rule for mapping in mappings for rule in rules_of(slot.tap, slot.ip, mapping))
    return public_endpoints(tuple(rule for rule in rules if rule.chain == MAPPING))


def view(*mappings: Mapping) -> NodeView:
    return NodeView(
        "br-slice",
        "eth0",
        Ipv4Subnet(SUBNET),
        Ipv4Address("10.100.1.1"),
        (UPLINK_ADDRESS,),
        own(*mappings),
    )


def base(hook: str, priority: int = 0, **of: Any) -> Chain:
    words: dict[str, Any] = {"kind": "filter", "policy": "accept"} | of
    return Chain(words.pop("family", "ip"), "base", hook=hook, priority=priority, **words)


def found(chain: Chain, *bodies: Body, node: NodeView | None = None, **more: Any) -> list[str]:
    return [f"{each.place}: {each.does}" for each in judged(chain, *bodies, node=node or view(SSH), **more)]


def judged(
    chain: Chain,
    *bodies: Body,
    node: NodeView,
    others: dict[str, list[Body]] | None = None,
    **sets: list[Any],
) -> tuple[Finding, ...]:
    rules = [ForeignRule("base", f"handle {number}", json.dumps(body)) for number, body in enumerate(bodies)]
    for name, of in (others or {}).items():
        rules += [ForeignRule(name, f"{name} {number}", json.dumps(body)) for number, body in enumerate(of)]
    chains = (chain, *(Chain("ip", name) for name in others or {}))
    elements = {name: json.dumps(each) for name, each in sets.items()}
    table = ForeignTable(f"{chain.family} other", chain.family, chains, tuple(rules), elements)
    return findings(ForeignTables((table,)), node)


def ip(field: str) -> dict[str, Any]:
    return {"payload": {"protocol": "ip", "field": field}}


def tcp(field: str) -> dict[str, Any]:
    return {"payload": {"protocol": "tcp", "field": field}}


def meta(key: str) -> dict[str, Any]:
    return {"meta": {"key": key}}


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


DROP: Final[dict[str, Any]] = {"drop": None}
ACCEPT: Final[dict[str, Any]] = {"accept": None}
STATE: Final = {"ct": {"key": "state"}}


@pytest.mark.parametrize(
    "condition",
    [
        match(meta("iifname"), "br-slice"),
        match(meta("iifname"), "br-*"),
        match(meta("oifname"), {"set": ["eth0", "eth1"]}),
        match(ip("saddr"), SLICE),
        match(ip("saddr"), {"prefix": {"addr": "10.0.0.0", "len": 8}}),
        match(ip("daddr"), {"range": ["10.100.1.7", "10.100.1.20"]}),
        match(ip("daddr"), "@blocked"),
        match(tcp("dport"), 443),
        match(STATE, ["new"], "in"),
        match(STATE, "invalid", "!="),
        match(ip("saddr"), "192.168.0.1", "!="),
        {"limit": {"rate": 1}},
        {"xt": {"type": "match", "name": "hashlimit"}},
        match(ip("saddr"), "@unknown"),
    ],
    ids=str,
)
def test_foreign_drop_rule_that_can_match_forwarded_packets_of_slices_is_reported(
    condition: dict[str, Any],
) -> None:
    assert found(base("forward"), [condition, DROP], blocked=[SLICE]) == ["handle 0: drop"]


@pytest.mark.parametrize(
    "condition",
    [
        match(meta("iifname"), "docker0"),
        match(meta("oifname"), "virbr*"),
        match(meta("iifname"), {"set": ["br-slice", "eth0"]}, "!="),
        match(ip("saddr"), "192.168.122.0"),
        match(ip("daddr"), {"prefix": {"addr": "172.17.0.0", "len": 16}}),
        match(STATE, "invalid", "in"),
        match({"payload": {"protocol": "ip6", "field": "saddr"}}, "fd00::1"),
        match(meta("nfproto"), "ipv6"),
        match({"&": [meta("mark"), 16]}, 16),
        match(ip("saddr"), "@blocked"),
        match({"fib": {"result": "oif", "flags": ["saddr", "iif"]}}, False),
    ],
    ids=str,
)
def test_foreign_drop_rule_that_excludes_packets_of_slices_is_not_reported(
    condition: dict[str, Any],
) -> None:
    assert found(base("forward"), [condition, DROP], blocked=["192.168.0.7"]) == []


@pytest.mark.parametrize(
    ("chain", "body", "does"),
    [
        (base("prerouting", -300), [{"notrack": None}], "do not track"),
        (base("prerouting", -150), [match(tcp("dport"), 80), {"tproxy": {"port": 1}}], "packets are delivered to a program on the host"),
        (base("forward"), [{"reject": None}], "reject"),
        (base("forward"), [{"queue": {"num": 1}}], "packets are passed to a program"),
        (base("forward"), [{"flow": {"op": "add", "flowtable": "@f"}}], "packets bypass other rules through a flowtable"),
        (base("forward"), [{"mangle": {"key": ip("daddr"), "value": "192.0.2.1"}}], "rewrite"),
        (base("output"), [match({"payload": {"protocol": "udp", "field": "sport"}}, 67), DROP], "drop"),
        (base("postrouting", 100, kind="nat"), [{"snat": {"addr": "192.0.2.1"}}], "the source of packets is translated to 192.0.2.1"),
        (base("prerouting", -100, kind="nat"), [{"redirect": {"port": 1}}], "packets are redirected to the host itself"),
        (base("ingress", device="eth0", family="netdev"), [match(tcp("dport"), 2222), DROP], "drop"),
        (base("ingress", device="br-slice", family="netdev"), [DROP], "drop"),
        (base("input", family="arp"), [DROP], "drop"),
    ],
)  # fmt: skip
def test_foreign_nftables_statement_that_diverts_packets_of_slices_is_reported_at_each_hook(
    chain: Chain, body: Body, does: str
) -> None:
    assert found(chain, body) == [f"handle 0: {does}"]


@pytest.mark.parametrize(
    ("chain", "body"),
    [
        (base("forward"), [{"counter": None}, {"log": None}, ACCEPT]),
        (base("forward"), [{"mangle": {"key": meta("mark"), "value": 7}}]),
        (base("forward"), [{"mangle": {"key": {"tcp option": {"name": "maxseg"}}, "value": {"rt": {}}}}]),
        (base("input"), [match(tcp("dport"), 22), DROP]),
        (base("input"), [match(meta("iifname"), "eth0"), DROP]),
        (base("postrouting", 100, kind="nat"), [match(meta("oifname"), "eth0"), {"masquerade": None}]),
        (base("prerouting", -100, kind="nat"), [{"dnat": {"family": "ip6", "addr": "fd00::1"}}]),
        (base("ingress", device="eth1", family="netdev"), [DROP]),
        (base("forward", family="bridge"), [DROP]),
        (base("forward", family="ip6"), [DROP]),
        (base("prerouting", -300), [match(ip("daddr"), "255.255.255.255"), {"notrack": None}]),
    ],
)  # fmt: skip
def test_foreign_nftables_statement_that_changes_nothing_for_slices_is_not_reported(
    chain: Chain, body: Body
) -> None:
    assert found(chain, body) == []


@pytest.mark.parametrize("policy", ["accept", "drop"])
def test_foreign_chain_policy_drop_is_reported_unless_all_packets_of_slices_are_accepted_before(
    policy: Policy,
) -> None:
    forward = base("forward", policy=policy)
    answers = [match(STATE, ["established", "related"], "in"), ACCEPT]
    is_found = ["its policy: drop"] if policy == "drop" else []
    assert found(forward) == is_found
    assert found(forward, answers) == is_found
    from_slices = [match(meta("iifname"), "br-slice"), match(meta("oifname"), "eth0"), ACCEPT]
    to_slices = [match(meta("oifname"), "br-slice"), ACCEPT]
    assert found(forward, answers, from_slices, to_slices) == []


def test_foreign_chain_is_reported_only_if_packets_of_slices_can_reach_it_by_a_jump() -> None:
    forward = base("forward")
    others = {"blocks": [[DROP]]}
    assert found(forward, [{"jump": {"target": "blocks"}}], others=others) == ["blocks 0: drop"]
    docker = match(meta("iifname"), "docker0")
    assert found(forward, [docker, {"jump": {"target": "blocks"}}], others=others) == []
    returns = {"blocks": [[match(meta("iifname"), {"set": ["br-slice", "eth0"]}), {"return": None}], [DROP]]}
    assert found(forward, [{"jump": {"target": "blocks"}}], others=returns) == []


def test_verdict_map_of_a_foreign_nftables_rule_is_judged_by_its_elements() -> None:
    states = [["invalid", DROP], ["established", ACCEPT]]
    vmap = {"vmap": {"key": STATE, "data": {"set": states}}}
    assert found(base("forward"), [vmap]) == []
    assert found(base("forward"), [{"vmap": {"key": STATE, "data": {"set": [["new", DROP]]}}}]) == [
        "handle 0: drop"
    ]
    named = {"vmap": {"key": tcp("dport"), "data": "@ports"}}
    assert found(base("forward"), [named], ports=[[443, DROP]]) == ["handle 0: drop"]


@pytest.mark.parametrize(
    ("to", "mappings", "is_found"),
    [
        ({"addr": "10.100.1.3"}, (), True),
        ({"addr": {"map": {"key": tcp("dport"), "data": {"set": [[80, "10.100.1.3"]]}}}}, (), True),
        ({"addr": "172.17.0.2"}, (), False),
        ({"addr": "172.17.0.2"}, (SSH,), True),
        ({"addr": "172.17.0.2"}, (ALL_PORTS,), False),
    ],
)
def test_foreign_nat_rule_is_reported_if_it_leads_to_slices_or_redirects_an_ingress_rule(
    to: Any, mappings: tuple[Mapping, ...], is_found: bool
) -> None:
    of_ingress = [
        match(ip("daddr"), "198.51.100.7"),
        match(tcp("dport"), 2222),
        match(meta("iifname"), "eth0"),
    ]
    chain = base("prerouting", -100, kind="nat")
    assert bool(found(chain, [*of_ingress, {"dnat": to}], node=view(*mappings))) == is_found


def test_mirroring_of_frames_to_another_slice_is_reported_for_both_slots_and_not_for_the_node() -> None:
    chain = base("ingress", device="slice0", family="netdev")
    spied = judged(chain, [{"dup": {"addr": "slice1"}}], node=view())
    assert set(mirrored(spied)) == {0, 1}
    assert reported(spied) is None
    redirected = judged(
        base("ingress", device="eth0", family="netdev"), [{"fwd": {"dev": "slice3"}}], node=view()
    )
    assert set(mirrored(redirected)) == {3}
    elsewhere = judged(chain, [{"dup": {"addr": "eth9"}}], node=view())
    assert mirrored(elsewhere) == {}
    assert reported(elsewhere) is not None


def test_finding_about_a_foreign_rule_names_its_table_chain_hook_rule_and_effect() -> None:
    chain = base("ingress", device="br-slice", family="netdev")
    drift = reported(judged(chain, [DROP], node=view()))
    assert drift is not None
    assert (drift.kind, drift.observed) == (
        "foreign.rules",
        "netdev other base (ingress of br-slice), handle 0: drop",
    )


def test_findings_about_foreign_rules_beyond_a_limit_are_counted_instead_of_named() -> None:
    drift = reported(
        judged(base("forward"), *([match(tcp("dport"), port), DROP] for port in range(30)), node=view())
    )
    assert drift is not None
    assert drift.observed.endswith("; and 22 more")


def test_foreign_nftables_chains_that_jump_to_each_other_repeatedly_are_judged_in_bounded_time() -> None:
    others = {f"c{number}": [[{"jump": {"target": f"c{number + 1}"}}]] * 8 for number in range(15)}
    others["c15"] = [[DROP]]
    assert found(base("forward"), [{"jump": {"target": "c0"}}], others=others) == ["c15 0: drop"]


QUIET: Final = {
    "docker": """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
COMMIT
*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP
COMMIT
""",
    "libvirt": """*mangle
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:LIBVIRT_PRT - [0:0]
-A POSTROUTING -j LIBVIRT_PRT
-A LIBVIRT_PRT -o virbr0 -p udp -m udp --dport 68 -j CHECKSUM --checksum-fill
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:LIBVIRT_FWI - [0:0]
:LIBVIRT_FWO - [0:0]
:LIBVIRT_INP - [0:0]
-A INPUT -j LIBVIRT_INP
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A LIBVIRT_FWI -d 192.168.122.0/24 -o virbr0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_FWO -s 192.168.122.0/24 -i virbr0 -j ACCEPT
-A LIBVIRT_FWO -i virbr0 -j REJECT --reject-with icmp-port-unreachable
-A LIBVIRT_INP -i virbr0 -p udp -m udp --dport 53 -j ACCEPT
-A LIBVIRT_INP -i virbr0 -p udp -m udp --dport 67 -j ACCEPT
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
:LIBVIRT_PRT - [0:0]
-A POSTROUTING -j LIBVIRT_PRT
-A LIBVIRT_PRT -s 192.168.122.0/24 -d 224.0.0.0/24 -j RETURN
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -p tcp -j MASQUERADE --to-ports 1024-65535
-A LIBVIRT_PRT -s 192.168.122.0/24 ! -d 192.168.122.0/24 -j MASQUERADE
COMMIT
""",
    "fail2ban": """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:f2b-sshd - [0:0]
-A INPUT -p tcp -m multiport --dports 22 -j f2b-sshd
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A f2b-sshd -s 192.0.2.9/32 -j REJECT --reject-with icmp-port-unreachable
-A f2b-sshd -j RETURN
COMMIT
""",
    "a gateway's own masquerade": """*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o eth0 -m comment --comment "all that leaves" -j MASQUERADE
COMMIT
""",
}


@pytest.mark.parametrize("host", QUIET)
def test_packet_filter_rules_that_hosts_usually_have_are_not_reported_as_foreign(host: str) -> None:
    assert findings(ForeignTables(tables(QUIET[host], "ip")), view(SSH)) == ()


UFW: Final = """*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-input - [0:0]
:ufw-before-forward - [0:0]
:ufw-user-input - [0:0]
:ufw-user-forward - [0:0]
-A INPUT -j ufw-before-input
-A FORWARD -j ufw-before-forward
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p udp -m udp --sport 67 --dport 68 -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
{}COMMIT
"""
ALLOWED: Final = """-A ufw-user-input -i br-slice -p udp -m udp --dport 67 -j ACCEPT
-A ufw-user-forward -i br-slice -o eth0 -j ACCEPT
-A ufw-user-forward -i eth0 -o br-slice -j ACCEPT
"""


def test_firewall_that_drops_by_default_is_reported_for_forward_and_input_until_it_allows_the_slices() -> (
    None
):
    closed = findings(ForeignTables(tables(UFW.format(""), "ip")), view(SSH))
    assert [(each.chain, each.does) for each in closed] == [("FORWARD", "drop"), ("INPUT", "drop")]
    assert findings(ForeignTables(tables(UFW.format(ALLOWED), "ip")), view(SSH)) == ()


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.100.1.0/24 -j DROP", "drop"),
        ("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD ! -i eth1 -p tcp -m multiport --dports 80,443 -j REJECT", "reject"),
        ("*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -m length --length 0:99 -j DROP", "drop"),
        ("*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i br-+ -j CT --notrack", "do not track"),
        ("*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -j TPROXY --on-port 1 --on-ip 0.0.0.0", "packets are delivered to a program on the host"),
        ("*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j TEE --gateway 192.0.2.1", "copy to 192.0.2.1"),
        ("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p udp --dport 9 -j DNAT --to-destination 10.100.1.3-10.100.1.4:9", "the destination of packets is translated to 10.100.1.3, 10.100.1.4"),
        ("*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 10.100.1.0/24 -j SNAT --to-source 192.0.2.1", "the source of packets is translated to 192.0.2.1"),
    ],
)  # fmt: skip
def test_iptables_rule_that_diverts_packets_of_slices_is_reported_by_its_number(line: str, does: str) -> None:
    saved = tables(f"{line}\nCOMMIT\n", "iptables-legacy")
    [of] = findings(ForeignTables(saved), view(SSH))
    assert (of.place, of.does) == ("rule 1", does)


def test_unreadable_foreign_packet_filter_tables_are_reported_with_the_package_to_install() -> None:
    drift = reported(findings(ForeignTables((), ("filter",)), view()))
    assert drift is not None
    assert (
        drift.observed
        == "iptables-legacy filter all chains (any hook), all rules: the agent cannot read the rules of iptables-legacy; install iptables"
    )


@pytest.mark.parametrize(
    ("hook", "left", "right", "is_found"),
    [
        # Among the slices' packets only DHCP, which is UDP, reaches the host itself.
        ("input", ip("protocol"), {"range": [50, 51]}, False),
        ("input", ip("protocol"), {"range": [1, 17]}, True),
        ("forward", meta("l4proto"), {"set": [{"range": [1, 10]}, 17]}, True),
        (
            "forward",
            {"fib": {"result": "type", "flags": ["daddr"]}},
            {"set": ["local", {"range": [5, 9]}]},
            True,
        ),
        ("forward", {"ct": {"key": "state"}}, {"set": ["new", {"range": [1, 2]}]}, True),
        ("forward", meta("pkttype"), {"set": [{"range": [1, 2]}]}, True),
    ],
)
def test_foreign_nftables_rule_with_a_range_is_judged_by_the_members_of_the_range(
    hook: str, left: Any, right: Any, *, is_found: bool
) -> None:
    assert bool(found(base(hook), [match(left, right), {"drop": None}])) == is_found


def test_foreign_nftables_table_that_the_agent_cannot_parse_is_reported_and_hides_no_other_finding() -> None:
    chain = base("forward")
    broken = ForeignTable("ip broken", "ip", (chain,), (ForeignRule(chain.name, "handle 1", "{"),))
    dropping = ForeignTable(
        "ip other", "ip", (chain,), (ForeignRule(chain.name, "handle 2", '[{"drop":null}]'),)
    )
    does = {(each.table, each.does) for each in findings(ForeignTables((broken, dropping)), view())}
    assert does == {("ip broken", "the agent cannot analyze this nftables table"), ("ip other", "drop")}
