"""Tests of repeated DHCP cycles on one DHCP server: an address is ordered, leased by a client on the slot's tap, and
withdrawn.

Some cycles begin with an old lease that ties the address to another network card, or the card to another address, or
that has expired. A real client obtained the lease, so that the DHCP server keeps it in memory, or the test wrote it to
the server's lease file only. The old lease has no effect: the server offers the ordered address.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from events.values import Ipv4Address, MacAddress
from node_agent.aspects.leases import LeaseAspect, ObservedAddress, Reservation
from node_agent.host.slices import SliceNetwork
from node_agent.lab.lab import Lab
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run, slice_on
from tests.torture import count, seed

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(600)]
CYCLES: Final = count(100, usual_share=20)
NEIGHBOUR: Final = network(3)
FOREIGN_MAC: Final = MacAddress("52:54:00:99:99:99")
LATER, LONG_AGO = 1893456000, 1


@pytest.fixture
def host(lab: Lab) -> Iterator["Real"]:
    # Imported here and not above: OVS's packages are an extra, and these tests are collected without it too.
    from tests.contract.network.lab_host import real_host

    with real_host(lab.node("lab-b"), NETWORK) as host:
        run(gateway_of(host).to_apply())
        yield host


def order(host: "Real", slot: SliceNetwork) -> None:
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))


def withdraw(host: "Real", slot: SliceNetwork) -> None:
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(slot))


def leave_a_lease(host: "Real", slot: SliceNetwork) -> None:
    """Let a client obtain a DHCP lease, then remove the slot's network except for the lease in the DHCP server's
    memory.
    """
    order(host, slot)
    assert host.lease(slot.tap, slot.mac) == slot.ip
    host.leases.withdraw(Reservation(slot.tap, slot.mac, slot.ip))
    for aspect in reversed(aspects_of(host)):
        if not isinstance(aspect, LeaseAspect):
            run(aspect.to_remove(slot))


def write(host: "Real", expiry: int, mac: MacAddress, ip: Ipv4Address) -> None:
    with folder(host).joinpath("leases").open("a") as file:
        file.write(f"{expiry} {mac} {ip} * *\n")


def no_lease(_host: "Real", _slot: SliceNetwork) -> None:
    """Do nothing: the DHCP cycle begins without an old lease."""


def address_leased_to_another_mac(host: "Real", slot: SliceNetwork) -> None:
    leave_a_lease(host, replace(NEIGHBOUR, ip=slot.ip))


def mac_leased_another_address(host: "Real", slot: SliceNetwork) -> None:
    leave_a_lease(host, replace(slot, ip=NEIGHBOUR.ip))


def earlier_lease_of_the_slot(host: "Real", slot: SliceNetwork) -> None:
    leave_a_lease(host, slot)


def lease_of_foreign_mac_in_file(host: "Real", slot: SliceNetwork) -> None:
    write(host, LATER, FOREIGN_MAC, slot.ip)


def expired_lease_in_file(host: "Real", slot: SliceNetwork) -> None:
    write(host, LONG_AGO, FOREIGN_MAC, slot.ip)
    write(host, LONG_AGO, slot.mac, slot.ip)


PLANTED: Final[tuple[Callable[["Real", SliceNetwork], None], ...]] = (
    no_lease,
    address_leased_to_another_mac,
    mac_leased_another_address,
    earlier_lease_of_the_slot,
    lease_of_foreign_mac_in_file,
    expired_lease_in_file,
)


def folder(host: "Real") -> Path:
    return host.leases_driver.folders[1]


def pids(host: "Real") -> list[int]:
    return [each.pid for each in host.leases_driver._server.running()]


def test_reserved_addresses_are_leased_despite_conflicting_dhcp_leases_and_no_lease_remains(
    host: "Real",
) -> None:
    chance, [server] = random.Random(seed()), pids(host)
    kinds = [*PLANTED, *chance.choices(PLANTED, k=CYCLES)][-max(CYCLES, len(PLANTED)) :]
    chance.shuffle(kinds)
    for cycle, plant in enumerate(kinds):
        slot, during_the_lease = network(chance.randrange(3)), chance.random() < 0.5
        print(f"cycle {cycle}: {plant.__name__} of {slot.tap}, and during the lease: {during_the_lease}")
        plant(host, slot)
        order(host, slot)
        assert host.lease(slot.tap, slot.mac) == slot.ip
        if during_the_lease:
            lease_of_foreign_mac_in_file(host, slot)
            assert host.lease(slot.tap, slot.mac) == slot.ip
        order(host, slot)
        observed = LeaseAspect(host.leases).observe_address(slot)
        assert observed == ObservedAddress(slot.ip, "bound")
        assert host.leases.reservations() == {Reservation(slot.tap, slot.mac, slot.ip)}
        assert {(each.mac, each.ip) for each in host.leases.leases()} == {(slot.mac, slot.ip)}
        withdraw(host, slot)
        assert (host.leases.leases(), pids(host)) == (frozenset(), [server])
        assert [*folder(host).joinpath("hosts").iterdir()] == []
    assert folder(host).joinpath("leases").read_text() == ""
    assert len(kinds) >= CYCLES
