"""Tests of the change sources of a real node: each change by another program is reported, and nothing is reported
before the change.
"""

import select
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from node_agent.aspects.flows import cookie_of
from node_agent.aspects.leases import Reservation
from node_agent.lab.lab import Lab
from node_agent.packets.rules import Change
from tests.contract.network.conftest import clear
from tests.contract.network.hosts import SETTINGS, Host, aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run, slice_on
from tests.waiting import until

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real

pytestmark = pytest.mark.node
SLOT: Final = network(0)
_TIMEOUT: Final = 10.0
_QUIET: Final = 0.2


@dataclass(frozen=True)
class ReportedChange:
    """Change of a host's network by another program, and the name of the change source that reports it. `greets` is
    true for a source that reports once when it starts to listen.
    """

    source: str
    change: Callable[[Host], None]
    greets: bool = False


def no_port(host: Host) -> None:
    host.switch.delete_port(SLOT.tap)


def mirrored(host: Host) -> None:
    host.plant_foreign_objects()


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


def throttled(host: Host) -> None:
    host.plant_addition(SLOT.tap, "qdisc")


def policy_rule(host: Host) -> None:
    host.interfere("rule that drops")
    host.end_interference("rule that drops")


def static_neighbour(host: Host) -> None:
    host.interfere("static neighbour")


def no_rules(host: Host) -> None:
    host.filter.change(Change(delete=host.filter.ruleset().rules))


def reserved_for_another(host: Host) -> None:
    host.leases.reserve(Reservation("slice3", network(3).mac, network(3).ip))


def unreadable_reservation(host: Host) -> None:
    host.damage_reservation(SLOT.tap, "chmod 000 {file}")


def set_in_switch(name: str) -> Callable[[Host], None]:
    return lambda host: host.set_in_switch(SLOT.tap, SETTINGS[name])


def dormant(host: Host) -> None:
    host.plant_in_filter("dormant table")


def ipsec_policy(host: Host) -> None:
    host.plant_policy("10.100.1.0/24", "0.0.0.0/0")
    host.remove_policy("10.100.1.0/24", "0.0.0.0/0")


CHANGES: Final = {
    "a port": ReportedChange("ovsdb", no_port, greets=True),
    "a mirror of the bridge": ReportedChange("ovsdb", mirrored, greets=True),
    "a port's VLAN": ReportedChange("ovsdb", in_a_vlan, greets=True),
    "all flows of a slot": ReportedChange("openflow", no_flows, greets=True),
    "one flow": ReportedChange("openflow", one_flow_less, greets=True),
    "a tap": ReportedChange("rtnetlink", tap_down),
    "the gateway's address": ReportedChange("rtnetlink", no_address),
    "a discipline of a tap": ReportedChange("rtnetlink", throttled),
    "a policy rule": ReportedChange("rtnetlink", policy_rule),
    "a static neighbour": ReportedChange("neighbours", static_neighbour),
    "rules": ReportedChange("nfnetlink", no_rules),
    "a dormant table": ReportedChange("nfnetlink", dormant),
    "an IPsec policy": ReportedChange("xfrm", ipsec_policy),
    "reservations": ReportedChange("inotify", reserved_for_another),
    "a reservation's mode": ReportedChange("inotify", unreadable_reservation),
    **{
        f"{name} in the switch": ReportedChange(
            "openflow" if setting.command.startswith("ovs-ofctl") else "ovsdb",
            set_in_switch(name),
            greets=True,
        )
        for name, setting in SETTINGS.items()
        # The switch does not report a change of how it treats fragments.
        if name != "no fragments"
    },
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
def test_change_of_the_host_by_another_program_is_reported_by_the_expected_change_source(
    what: str, carrying: "Real"
) -> None:
    reported = CHANGES[what]
    with closing(carrying.sources()[reported.source]()) as listening:
        timeout = _TIMEOUT if reported.greets else 0
        while select.select([listening], [], [], timeout)[0]:
            assert listening.drain()
            timeout = _QUIET
        reported.change(carrying)
        assert select.select([listening], [], [], _TIMEOUT)[0]
        assert listening.drain()


def is_learned() -> bool:
    shown = ["ip", "neigh", "show", "dev", "uplink0", "nud", "reachable"]
    return "198.51.100.1" in subprocess.run(shown, check=True, capture_output=True, text=True).stdout


def test_neighbour_table_entry_that_the_kernel_learned_is_not_reported_as_a_change_of_the_host(
    carrying: "Real",
) -> None:
    with closing(carrying.sources()["neighbours"]()) as listening:
        subprocess.run(["ip", "neigh", "flush", "dev", "uplink0"], check=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sends:
            sends.sendto(b"", ("198.51.100.1", 9))
        until(is_learned, "the kernel has learned the gateway")
        assert not select.select([listening], [], [], _QUIET)[0]
