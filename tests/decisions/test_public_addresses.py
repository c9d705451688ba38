"""Which public address and port a way in may have, and what an admin may change of them."""

from itertools import islice

import pytest

from control_plane.decisions.public_addresses import (
    AddressWish,
    PortWish,
    WayWish,
    candidates,
    change,
    normal,
)
from control_plane.decisions.refusals import Conflict
from events.claims import way_in
from events.nodes import NodeAddressesChanged, PublicAddress
from events.values import Ipv4Address, Ipv4Subnet, NodeId

NODE = NodeId("lab-a")
SHARED = PublicAddress(Ipv4Address("203.0.113.7"), "ports", 20000, 20002)
OTHER = PublicAddress(Ipv4Address("203.0.113.8"), "ports", 20000, 20000)
WHOLE = PublicAddress(Ipv4Address("203.0.113.9"), "whole", 1, 1)
ALL = (SHARED, OTHER, WHOLE)


def tried(to: PortWish | AddressWish, start: int = 0) -> list[str]:
    return [way_in(each).value for each in candidates(WayWish(0, to, ()), ALL, start)]


def test_every_port_is_tried_once_from_where_it_begins() -> None:
    assert tried(PortWish("tcp", 22, None), start=4) == [
        "tcp/203.0.113.7:20001",
        "tcp/203.0.113.7:20002",
        "tcp/203.0.113.7:20000",
        "tcp/203.0.113.8:20000",
    ]


def test_a_port_that_is_named_is_tried_alone_on_each_address_that_has_it() -> None:
    assert tried(PortWish("udp", 53, 20000)) == ["udp/203.0.113.7:20000", "udp/203.0.113.8:20000"]
    assert tried(PortWish("udp", 53, 443)) == []


def test_whole_addresses_are_for_those_who_want_a_whole_one() -> None:
    assert tried(AddressWish()) == ["203.0.113.9"]


def test_sources_that_are_the_same_read_the_same() -> None:
    given = ("198.51.100.128/25", "10.0.0.0/8", "198.51.100.0/25", "10.1.0.0/16")
    assert normal(map(Ipv4Subnet, given)) == ("10.0.0.0/8", "198.51.100.0/24")


def test_a_change_names_what_came_and_what_went_and_is_in_order() -> None:
    [fact] = change(NODE, (SHARED, OTHER), (WHOLE, SHARED), used=[SHARED.address])
    assert fact == NodeAddressesChanged(NODE, (SHARED, WHOLE), (WHOLE.address,), (OTHER.address,))
    assert change(NODE, (SHARED, WHOLE), (WHOLE, SHARED), used=[]) == ()


@pytest.mark.parametrize(
    "wanted",
    [
        (),
        (PublicAddress(SHARED.address, "whole", 1, 1),),
        (PublicAddress(SHARED.address, "ports", 20001, 20002),),
    ],
    ids=["taken away", "given out otherwise", "fewer ports"],
)
def test_what_is_in_use_stays_as_it_is(wanted: tuple[PublicAddress, ...]) -> None:
    with pytest.raises(Conflict, match=SHARED.address):
        change(NODE, (SHARED,), wanted, used=[SHARED.address])
    assert len(change(NODE, (SHARED,), wanted, used=[])) == 1


def test_more_ports_may_be_added_to_what_is_in_use() -> None:
    wider = PublicAddress(SHARED.address, "ports", 19000, 21000)
    [fact] = change(NODE, (SHARED,), (wider,), used=[SHARED.address])
    assert (fact.addresses, fact.added, fact.withdrawn) == ((wider,), (), ())


def test_many_candidates_cost_nothing_until_they_are_tried() -> None:
    wide = PublicAddress(SHARED.address, "ports", 1, 65535)
    first = islice(candidates(WayWish(0, PortWish("tcp", 22, None), ()), (wide,), 7), 1)
    assert [way_in(each).value for each in first] == ["tcp/203.0.113.7:8"]
