"""Addresses that come and go on one DHCP server: ordered, leased by a client on the slot's tap, and taken back.

Into some cycles a lease is planted that ties the address to another card, or the card to another address, or that is
over: some by a client that really got it, which the server remembers, and some by hand in the server's file alone. Such
a lease moves nothing: what is ordered is what is served.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from events.values import Ipv4Address, MacAddress
from node_agent.lab.lab import Lab
from node_agent.leases import LeaseAspect, ObservedAddress, Reservation
from node_agent.slices import SliceNetwork
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run, slice_on
from tests.torture import count, seed

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(600)]
CYCLES: Final = count(100)
NEIGHBOUR: Final = network(3)
THIEF: Final = MacAddress("52:54:00:99:99:99")
LATER, LONG_AGO = 1893456000, 1


@pytest.fixture
def host(lab: Lab) -> Iterator["Real"]:
    # Here and not above: OVS's packages are an extra, and these tests are collected without it too.
    from tests.contract.network.lab_host import real_host

    with real_host(lab.node("lab-b"), NETWORK) as host:
        run(gateway_of(host).to_apply())
        yield host


def order(host: "Real", slot: SliceNetwork) -> None:
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))


def take_back(host: "Real", slot: SliceNetwork) -> None:
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(slot))


def leave_a_lease(host: "Real", slot: SliceNetwork) -> None:
    """A client gets it, and then all goes but what the server remembers."""
    order(host, slot)
    assert host.lease(slot.tap, slot.mac) == slot.ip
    host.leases.withdraw(Reservation(slot.tap, slot.mac, slot.ip))
    for aspect in reversed(aspects_of(host)):
        if not isinstance(aspect, LeaseAspect):
            run(aspect.to_remove(slot))


def write(host: "Real", expiry: int, mac: MacAddress, ip: Ipv4Address) -> None:
    with folder(host).joinpath("leases").open("a") as file:
        file.write(f"{expiry} {mac} {ip} * *\n")


def nothing(_host: "Real", _slot: SliceNetwork) -> None:
    """As it should be."""


def another_has_its_address(host: "Real", slot: SliceNetwork) -> None:
    leave_a_lease(host, replace(NEIGHBOUR, ip=slot.ip))


def its_card_has_another_address(host: "Real", slot: SliceNetwork) -> None:
    leave_a_lease(host, replace(slot, ip=NEIGHBOUR.ip))


def its_own_of_an_earlier_time(host: "Real", slot: SliceNetwork) -> None:
    leave_a_lease(host, slot)


def written_for_another(host: "Real", slot: SliceNetwork) -> None:
    write(host, LATER, THIEF, slot.ip)


def written_and_over(host: "Real", slot: SliceNetwork) -> None:
    write(host, LONG_AGO, THIEF, slot.ip)
    write(host, LONG_AGO, slot.mac, slot.ip)


PLANTED: Final[tuple[Callable[["Real", SliceNetwork], None], ...]] = (
    nothing,
    another_has_its_address,
    its_card_has_another_address,
    its_own_of_an_earlier_time,
    written_for_another,
    written_and_over,
)


def folder(host: "Real") -> Path:
    return host.leases_driver.folders[1]


def pids(host: "Real") -> list[int]:
    return [each.pid for each in host.leases_driver._server.running()]


def test_addresses_are_leased_as_ordered_and_nothing_of_them_is_left(host: "Real") -> None:
    chance, [server] = random.Random(seed()), pids(host)
    kinds = [*PLANTED, *chance.choices(PLANTED, k=CYCLES)][-max(CYCLES, len(PLANTED)) :]
    chance.shuffle(kinds)
    for cycle, plant in enumerate(kinds):
        slot, while_it_is_there = network(chance.randrange(3)), chance.random() < 0.5
        print(f"cycle {cycle}: {plant.__name__} of {slot.tap}, and while it is there: {while_it_is_there}")
        plant(host, slot)
        order(host, slot)
        assert host.lease(slot.tap, slot.mac) == slot.ip
        if while_it_is_there:
            written_for_another(host, slot)
            assert host.lease(slot.tap, slot.mac) == slot.ip
        order(host, slot)
        observed = LeaseAspect(host.leases).observe_address(slot)
        assert observed == ObservedAddress(slot.ip, "bound")
        assert host.leases.reservations() == {Reservation(slot.tap, slot.mac, slot.ip)}
        assert {(each.mac, each.ip) for each in host.leases.leases()} == {(slot.mac, slot.ip)}
        take_back(host, slot)
        assert (host.leases.leases(), pids(host)) == (frozenset(), [server])
        assert [*folder(host).joinpath("hosts").iterdir()] == []
    assert folder(host).joinpath("leases").read_text() == ""
    assert len(kinds) >= CYCLES
