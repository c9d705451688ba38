"""Whose a domain is: a slot's own by its name, by its UUID, or as a guest of ours that uses its tap or its MAC."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from node_agent.guests import Guest, guest_for
from node_agent.machine_plans import FoundDomain
from node_agent.machines import Domains
from tests.contract.network.slices import network, slice_on

SLOT, OTHER = network(0), network(1)
GUEST = guest_for(slice_on(SLOT))


def domain(
    *interfaces: str, name: str = "stranger", uuid: UUID | None = None, guest: Guest | None = None
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
    ids=["its name", "its uuid", "a guest on its tap", "a guest with its mac"],
)
def test_a_domain_is_the_slots_by_one_of_these(found: FoundDomain) -> None:
    assert Domains([domain(OTHER.tap), found]).of(SLOT, GUEST.uuid) == (found,)


@pytest.mark.parametrize(
    "found",
    [
        domain(SLOT.tap, SLOT.mac),
        domain(OTHER.tap, OTHER.mac, guest=GUEST),
        domain(name=OTHER.tap),
    ],
    ids=["another program's, on its tap", "a guest elsewhere", "another slot's"],
)
def test_any_other_domain_is_nobodys_to_end(found: FoundDomain) -> None:
    assert Domains([found]).of(SLOT, GUEST.uuid) == ()


def test_a_domain_that_is_the_slots_in_every_way_is_found_once() -> None:
    found = domain(SLOT.tap, SLOT.mac, name=SLOT.tap, uuid=GUEST.uuid, guest=GUEST)
    assert Domains([found]).of(SLOT, GUEST.uuid) == (found,)


def test_only_a_domains_own_name_makes_it_known() -> None:
    found = Domains([domain(SLOT.tap, guest=GUEST)])
    assert found.knows("stranger")
    assert not found.knows(SLOT.tap)
