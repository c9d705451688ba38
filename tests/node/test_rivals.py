"""Other tables' translations, as nftables lists them: what they take, where they send it, and whom that concerns."""

from typing import Any, Final

import pytest

from node_agent.mappings import rules_of
from node_agent.rivals import Diversion, diversion, rivals, targets
from node_agent.rules import Rule
from tasks.orders import Mapping
from tests.contract.network.slices import SUBNET, address_mapping, network, port_mapping

Body = list[dict[str, Any]]
DADDR: Final = {"payload": {"protocol": "ip", "field": "daddr"}}
DPORT: Final = {"payload": {"protocol": "tcp", "field": "dport"}}
SSH: Final = port_mapping(1, "198.51.100.7", 2222)
ALL_PORTS: Final = address_mapping(2, "198.51.100.8")


def match(left: object, right: object, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def found(*body: dict[str, Any]) -> Diversion | None:
    return diversion("ip nat", "PREROUTING", 7, list(body))


def own(*mappings: Mapping) -> list[Rule]:
    slot = network(0)
    return [rule for mapping in mappings for rule in rules_of(slot.tap, slot.ip, mapping)]


def test_a_rule_that_sends_nothing_elsewhere_diverts_nothing() -> None:
    assert found(match(DPORT, 80), {"accept": None}) is None
    assert found({"dnat": {"family": "ip6", "addr": "fd00::1"}}) is None
    assert found({"xt": {"type": "target", "name": "MASQUERADE"}}) is None
    assert found({"xt": None}) is None


@pytest.mark.parametrize(
    ("addr", "to"),
    [
        ("10.100.1.3", ("10.100.1.3/32",)),
        ({"range": ["10.1.1.0", "10.1.1.3"]}, ("10.1.1.0/30",)),
        ({"prefix": {"addr": "10.1.1.0", "len": 24}}, ("10.1.1.0/24",)),
        (
            {"map": {"key": DPORT, "data": {"set": [[80, {"concat": ["10.1.1.1", 90]}], [81, "10.1.1.2"]]}}},
            ("10.1.1.1/32", "10.1.1.2/32"),
        ),
        ({"map": {"key": DPORT, "data": "@named"}}, ("0.0.0.0/0",)),
    ],
    ids=["address", "range", "prefix", "map", "named map"],
)
def test_where_a_rule_sends_to_is_read_however_it_is_written(addr: object, to: tuple[str, ...]) -> None:
    sent = found({"dnat": {"addr": addr}})
    assert sent is not None
    assert sent.to == to


def test_what_a_rule_takes_is_read_and_what_it_leaves_is_not() -> None:
    taking = found(
        match(DADDR, {"set": ["198.51.100.7", {"prefix": {"addr": "203.0.113.0", "len": 24}}]}),
        match(DPORT, {"set": [80, {"range": [90, 99]}]}),
        match({"payload": {"protocol": "ip", "field": "saddr"}}, "192.0.2.1"),
        {"redirect": {"port": 8080}},
    )
    assert taking is not None
    assert (taking.of, taking.protocol) == (("198.51.100.7/32", "203.0.113.0/24"), "tcp")
    assert (taking.ports, taking.to) == (((80, 80), (90, 99)), ())
    leaving = found(match(DADDR, "198.51.100.7", "!="), {"redirect": None})
    assert leaving is not None
    assert leaving.of == ()


def test_a_rule_of_iptables_does_not_say_where_it_sends_to() -> None:
    opaque = found(match(DADDR, "198.51.100.7"), {"xt": {"type": "target", "name": "DNAT"}})
    assert opaque is not None
    assert (opaque.is_opaque, opaque.to) == (True, ())


def test_where_a_rule_of_iptables_sends_to_is_in_the_listing_for_people() -> None:
    listing = """table ip nat { # handle 1
\tchain PREROUTING { # handle 1
\t\ttype nat hook prerouting priority dstnat; policy accept;
\t\tip daddr 198.51.100.7 tcp dport 99 counter packets 0 bytes 0 dnat to 10.100.1.4:22 # handle 11
\t\tmeta l4proto tcp counter packets 0 bytes 0 dnat to 10.100.1.4-10.100.1.5 random # handle 12
\t}
}
table inet other { # handle 2
\tchain pre { # handle 1
\t\tudp dport 53 dnat ip to 10.100.1.9 # handle 11
\t}
}
"""
    assert targets(listing) == {
        ("ip nat", 11): ("10.100.1.4/32",),
        ("ip nat", 12): ("10.100.1.4/31",),
        ("inet other", 11): ("10.100.1.9/32",),
    }


def other(**of: Any) -> Diversion:
    return Diversion("ip nat", "DOCKER", 7, **of)


@pytest.mark.parametrize(
    "rival",
    [
        other(to=("10.100.1.128/25",)),
        other(of=("198.51.100.0/24",), to=("172.17.0.2/32",)),
        other(protocol="tcp", ports=((2000, 3000),)),
        other(protocol="udp", of=("198.51.100.8/32",)),
        other(),
    ],
    ids=["into the network", "from the address", "from the port", "from all ports", "from everywhere"],
)
def test_who_sends_into_the_slices_network_or_takes_of_a_way_in_is_a_rival(rival: Diversion) -> None:
    told = rivals([rival], own(SSH, ALL_PORTS), SUBNET)
    assert told is not None
    assert (told.kind, told.found) == ("rules.rival", str(rival))


@pytest.mark.parametrize(
    "neighbour",
    [
        other(to=("172.17.0.2/32",), protocol="tcp", ports=((8080, 8080),)),
        other(to=("172.17.0.2/32",), protocol="udp", ports=((2222, 2222),)),
        other(to=("172.17.0.2/32",), of=("198.51.100.9/32",)),
    ],
    ids=["another port", "another protocol", "another address"],
)
def test_who_does_neither_is_none(neighbour: Diversion) -> None:
    assert rivals([neighbour], own(SSH), SUBNET) is None


def test_where_no_slice_has_a_way_in_nobody_takes_anything_of_one() -> None:
    assert rivals([other(to=("172.17.0.2/32",))], own(), SUBNET) is None


def test_a_rival_is_told_by_its_table_its_chain_and_its_target() -> None:
    told = rivals([other(to=("10.100.1.3/32", "10.100.1.8/30")), other()], own(SSH), SUBNET)
    assert told is not None
    assert told.found == "ip nat DOCKER to 10.100.1.3, 10.100.1.8/30; ip nat DOCKER to elsewhere"
