"""Candidate public addresses and ports of an ingress rule, and changes to the public addresses of a node."""

from itertools import islice

import pytest

from control_plane.decisions.public_addresses import (
    AddressRequest,
    IngressRequest,
    PortRequest,
    candidates,
    change,
    normalized_sources,
)
from control_plane.decisions.refusals import Conflict
from events.claims import ingress_claim
from events.nodes import NodeAddressesChanged, PublicAddress
from events.values import Ipv4Address, Ipv4Subnet, NodeId

NODE = NodeId("lab-a")
SHARED = PublicAddress(Ipv4Address("203.0.113.7"), "ports", 20000, 20002)
OTHER = PublicAddress(Ipv4Address("203.0.113.8"), "ports", 20000, 20000)
WHOLE = PublicAddress(Ipv4Address("203.0.113.9"), "whole", 1, 1)
ALL = (SHARED, OTHER, WHOLE)


def candidate_claims(to: PortRequest | AddressRequest, start: int = 0) -> list[str]:
    return [ingress_claim(each).value for each in candidates(IngressRequest(0, to, ()), ALL, start)]


def test_candidates_for_any_public_port_contain_every_port_once_beginning_at_the_start_offset() -> None:
    assert candidate_claims(PortRequest("tcp", 22, None), start=4) == [
        "tcp/203.0.113.7:20001",
        "tcp/203.0.113.7:20002",
        "tcp/203.0.113.7:20000",
        "tcp/203.0.113.8:20000",
    ]


def test_candidates_for_a_named_public_port_are_this_port_on_each_address_that_offers_it() -> None:
    assert candidate_claims(PortRequest("udp", 53, 20000)) == [
        "udp/203.0.113.7:20000",
        "udp/203.0.113.8:20000",
    ]
    assert candidate_claims(PortRequest("udp", 53, 443)) == []


def test_candidates_for_a_whole_public_address_are_the_addresses_offered_as_a_whole() -> None:
    assert candidate_claims(AddressRequest()) == ["203.0.113.9"]


def test_source_subnets_of_an_ingress_rule_are_sorted_and_merged() -> None:
    given = ("198.51.100.128/25", "10.0.0.0/8", "198.51.100.0/25", "10.1.0.0/16")
    assert normalized_sources(map(Ipv4Subnet, given)) == ("10.0.0.0/8", "198.51.100.0/24")


def test_change_of_public_addresses_records_added_and_withdrawn_addresses_in_order() -> None:
    [fact] = change(NODE, (SHARED, OTHER), (WHOLE, SHARED), used=[SHARED.address])
    assert fact == NodeAddressesChanged(NODE, (SHARED, WHOLE), (WHOLE.address,), (OTHER.address,))
    assert change(NODE, (SHARED, WHOLE), (WHOLE, SHARED), used=[]) == ()


@pytest.mark.parametrize(
    "desired",
    [
        (),
        (PublicAddress(SHARED.address, "whole", 1, 1),),
        (PublicAddress(SHARED.address, "ports", 20001, 20002),),
    ],
    ids=["address removed", "different use", "fewer ports"],
)
def test_change_that_removes_a_public_address_or_port_in_use_is_a_conflict(
    desired: tuple[PublicAddress, ...],
) -> None:
    with pytest.raises(Conflict, match=SHARED.address):
        change(NODE, (SHARED,), desired, used=[SHARED.address])
    assert len(change(NODE, (SHARED,), desired, used=[])) == 1


def test_range_of_ports_of_a_public_address_in_use_can_be_extended() -> None:
    wider = PublicAddress(SHARED.address, "ports", 19000, 21000)
    [fact] = change(NODE, (SHARED,), (wider,), used=[SHARED.address])
    assert (fact.addresses, fact.added, fact.withdrawn) == ((wider,), (), ())


def test_candidate_ports_of_a_large_port_range_are_generated_lazily() -> None:
    wide = PublicAddress(SHARED.address, "ports", 1, 65535)
    first = islice(candidates(IngressRequest(0, PortRequest("tcp", 22, None), ()), (wide,), 7), 1)
    assert [ingress_claim(each).value for each in first] == ["tcp/203.0.113.7:8"]
