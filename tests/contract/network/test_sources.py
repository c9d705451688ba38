"""Who tells of changes on a real node says something of each that another program makes, and nothing before."""

import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from node_agent.flows import cookie_of
from node_agent.lab.lab import Lab
from node_agent.leases import Reservation
from node_agent.rules import Change
from tests.contract.network.conftest import clear
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run, slice_on

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real

pytestmark = pytest.mark.node
SLOT: Final = network(0)
_PATIENCE: Final = 10.0
_QUIET: Final = 0.2


@dataclass(frozen=True)
class Told:
    """A change, and who tells of it; `greets`: it says something once it listens."""

    source: str
    change: Callable[[Host], None]
    greets: bool = False


def no_port(host: Host) -> None:
    host.switch.delete_port(SLOT.tap)


def overheard(host: Host) -> None:
    host.plant_strangers()


def in_a_vlan(host: Host) -> None:
    host.plant_vlan(SLOT.tap, 7)


def no_flows(host: Host) -> None:
    host.switch.set_flows(SLOT.bridge, cookie_of(SLOT.index), frozenset())


def one_flow_less(host: Host) -> None:
    flows = host.switch.flows(SLOT.bridge)[cookie_of(SLOT.index)]
    host.switch.set_flows(SLOT.bridge, cookie_of(SLOT.index), frozenset(list(flows)[1:]))


def tap_down(_host: Host) -> None:
    subprocess.run(["ip", "link", "set", SLOT.tap, "down"], check=True)


def no_address(_host: Host) -> None:
    subprocess.run(["ip", "addr", "flush", "dev", NETWORK.bridge], check=True)


def no_rules(host: Host) -> None:
    host.filter.change(Change(delete=host.filter.ruleset().rules))


def given_to_another(host: Host) -> None:
    host.leases.reserve(Reservation("slice3", network(3).mac, network(3).ip))


CHANGES: Final = {
    "a port": Told("ovsdb", no_port, greets=True),
    "who hears the bridge": Told("ovsdb", overheard, greets=True),
    "a port's VLAN": Told("ovsdb", in_a_vlan, greets=True),
    "all flows of a slot": Told("openflow", no_flows, greets=True),
    "one flow": Told("openflow", one_flow_less, greets=True),
    "a tap": Told("rtnetlink", tap_down),
    "the gateway's address": Told("rtnetlink", no_address),
    "rules": Told("nfnetlink", no_rules),
    "reservations": Told("inotify", given_to_another),
}


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator["Real"]:
    from tests.contract.network.lab_host import real_host

    with real_host(lab.node("lab-a"), NETWORK) as host:
        yield host
        clear(host)


@pytest.fixture
def carrying(host: "Real") -> "Real":
    run(gateway_of(host).to_apply())
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(SLOT)))
    return host


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_told_of(what: str, carrying: "Real") -> None:
    told = CHANGES[what]
    with closing(carrying.sources()[told.source]()) as listening:
        patience = _PATIENCE if told.greets else 0
        while select.select([listening], [], [], patience)[0]:
            assert listening.drain()
            patience = _QUIET
        told.change(carrying)
        assert select.select([listening], [], [], _PATIENCE)[0]
        assert listening.drain()
