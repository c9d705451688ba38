"""Libvirt domains of a slot: domains with its name or UUID, and guests of the agent with its tap or MAC."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from node_agent.aspects.machine_plans import FoundDomain
from node_agent.aspects.machines import Domains
from node_agent.host.guests import Guest, guest_for
from tests.contract.network.slices import network, slice_on

SLOT, OTHER = network(0), network(1)
GUEST = guest_for(slice_on(SLOT))


def domain(
    *interfaces: str, name: str = "foreign", uuid: UUID | None = None, guest: Guest | None = None
) -> FoundDomain:
    return FoundDomain(name, uuid or uuid4(), "running", guest, interfaces)


@pytest.mark.parametrize(
    "found",
    [
        domain(name=SLOT.tap),
        domain(uuid=GUEST.uuid),
        domain(SLOT.tap, guest=GUEST),
        domain(SLOT.mac, OTHER.tap, guest=replace(GUEST, tap=OTHER.tap)),
    ],
    ids=["name", "uuid", "guest-on-its-tap", "guest-with-its-mac"],
)
def test_libvirt_domain_with_the_name_uuid_tap_or_mac_of_a_slot_belongs_to_the_slot(
    found: FoundDomain,
) -> None:
    assert Domains([domain(OTHER.tap), found]).of(SLOT, GUEST.uuid) == (found,)


@pytest.mark.parametrize(
    "found",
    [
        domain(SLOT.tap, SLOT.mac),
        domain(OTHER.tap, OTHER.mac, guest=GUEST),
        domain(name=OTHER.tap),
    ],
    ids=["foreign-domain-on-its-tap", "guest-of-another-slot", "name-of-another-slot"],
)
def test_foreign_libvirt_domain_or_guest_of_another_slot_does_not_belong_to_the_slot(
    found: FoundDomain,
) -> None:
    assert Domains([found]).of(SLOT, GUEST.uuid) == ()


def test_libvirt_domain_that_matches_a_slot_in_several_ways_is_found_once() -> None:
    found = domain(SLOT.tap, SLOT.mac, name=SLOT.tap, uuid=GUEST.uuid, guest=GUEST)
    assert Domains([found]).of(SLOT, GUEST.uuid) == (found,)


def test_libvirt_domain_is_found_by_its_own_name_and_not_by_the_name_of_its_tap() -> None:
    found = Domains([domain(SLOT.tap, guest=GUEST)])
    assert found.has_name("foreign")
    assert not found.has_name(SLOT.tap)
