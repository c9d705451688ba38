"""Tests that no attack of the attack table arrives or takes effect, neither from a tap nor from inside a guest (P18),
while allowed traffic passes.

Every attack is followed by an allowed frame on the same path. Once its guards are removed, the attack itself arrives.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from node_agent.lab.guest import GuestImage, ensure_guest
from node_agent.lab.lab import Lab
from tests import matrix
from tests.contract.network.conftest import clear
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.senders import ALICE, SENDING_PROGRAM, FromGuest, FromTap, Sender, booted
from tests.contract.network.slices import GATEWAY, run
from tests.contract.network.traffic.attack_table import ATTACKS, NO_MEANING
from tests.contract.network.traffic.attacks import Kind, Victim
from tests.contract.network.traffic.guards import taken_away
from tests.contract.network.traffic.scene import (
    ALICES_PUBLIC_PORT,
    BOB,
    BRIDGE,
    WORLD,
    Places,
    Scene,
    slice_of,
)
from tests.contract.network.traffic.wire import Wire, arp_request, hardware_address, is_arp_reply
from tests.servers.lab import kept_folder

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real


@pytest.fixture(scope="module")
def image() -> GuestImage:
    return ensure_guest(kept_folder() / "guest", print, (SENDING_PROGRAM,))


@pytest.fixture(scope="module", name="host")
def _host(lab: Lab, image: GuestImage) -> Iterator["Real"]:
    """Lab node as a real host. The guest image is built before, because packages cannot be downloaded in the node's
    network namespace.
    """
    # Imported here and not above: the packages of the host drivers are an extra, and these tests are collected without
    # it.
    from tests.contract.network.lab_host import real_host
    from tests.contract.network.slices import NETWORK

    with real_host(lab.node("lab-a"), NETWORK) as host:
        run(gateway_of(host).to_apply())
        (uplink,) = host.links.addresses("uplink0")
        for slot in (ALICE, BOB):
            for aspect in aspects_of(host):
                run(aspect.to_apply(slice_of(slot, uplink)))
        # During the locktime, the kernel keeps the first of two ARP answers for an address.
        locktime = Path(f"/proc/sys/net/ipv4/neigh/{BRIDGE}/locktime")
        before = locktime.read_text()
        locktime.write_text("0")
        yield host
        locktime.write_text(before)
        clear(host)


@pytest.fixture(scope="module", params=["tap", "guest"])
def sender(request: pytest.FixtureRequest, host: "Real", lab: Lab, image: GuestImage) -> Iterator[Sender]:
    if request.param == "tap":
        with Wire(ALICE.tap) as wire:
            assert wire.ask(arp_request(GATEWAY, mac=ALICE.mac, own=ALICE.ip), is_arp_reply) is not None
            yield FromTap(wire)
        return
    with booted(lab.node("lab-a"), image) as guest:
        yield guest


@pytest.fixture(scope="module")
def bobs_wire(host: "Real") -> Iterator[Wire]:
    with Wire(BOB.tap) as wire:
        yield wire


@pytest.fixture
def scene(host: "Real", lab: Lab, sender: Sender, bobs_wire: Wire) -> Scene:
    """Setting of one attack. Bob's slice has just exchanged ARP with the gateway, so that the gateway's ARP table
    contains Bob's MAC.
    """
    node = lab.node("lab-a")
    assert bobs_wire.ask(arp_request(GATEWAY, mac=BOB.mac, own=BOB.ip), is_arp_reply) is not None
    (uplink,) = host.links.addresses("uplink0")
    places = Places(uplink, node.management_address, lab.gateway_address, hardware_address(ALICE.tap))
    return Scene(host, node, places, sender, bobs_wire)


def test_attack_table_tries_every_attack_kind_on_every_victim_or_declares_the_pair_meaningless() -> None:
    tried = {(attack.kind, attack.victim) for attack in ATTACKS.values()}
    assert tried | NO_MEANING.keys() == set(product(get_args(Kind), get_args(Victim)))
    assert tried & NO_MEANING.keys() == set()


@pytest.mark.node
@matrix.cases("P18", [*ATTACKS], few=8)
def test_frames_of_an_attack_from_a_slice_do_not_arrive_and_have_no_effect(case: str, scene: Scene) -> None:
    assert not ATTACKS[case].arrives(scene)


@pytest.mark.node
@matrix.cases("P18", [*ATTACKS], few=8)
def test_frames_of_an_attack_arrive_after_every_guard_against_the_attack_is_removed(
    case: str, scene: Scene
) -> None:
    with taken_away(scene, *ATTACKS[case].guards):
        assert ATTACKS[case].arrives(scene)


@pytest.mark.node
@pytest.mark.parametrize("sender", ["tap"], indirect=True, scope="module")
@matrix.cases("P18", [name for name, attack in ATTACKS.items() if len(attack.guards) > 1], few=3)
def test_frames_of_an_attack_do_not_arrive_while_one_guard_against_the_attack_remains(
    case: str, scene: Scene
) -> None:
    guards = ATTACKS[case].guards
    for left in guards:
        with taken_away(scene, *(guard for guard in guards if guard is not left)):
            assert not ATTACKS[case].arrives(scene)


in_guest = pytest.mark.parametrize("sender", ["guest"], indirect=True, scope="module")


@pytest.fixture
def guest(sender: Sender) -> FromGuest:
    assert isinstance(sender, FromGuest)
    return sender


@pytest.mark.node
@in_guest
def test_guest_obtains_its_address_by_dhcp(guest: FromGuest) -> None:
    assert f"lease of {ALICE.ip} obtained" in guest.do("udhcpc -f -q -n -i eth0 -s /bin/true 2>&1")


@pytest.mark.node
@in_guest
def test_guest_pings_an_external_host(guest: FromGuest) -> None:
    assert "1 packets received" in guest.do(f"ping -c 1 -W 5 {WORLD}")


@pytest.mark.node
@in_guest
def test_connection_of_a_guest_reaches_an_external_host_from_the_uplinks_address(
    guest: FromGuest, lab: Lab
) -> None:
    assert guest.do(f"echo hello | nc -w 5 {WORLD} 7") == "hello\n"
    seen = guest.do(f"wget -q -O - http://{WORLD}/")
    assert f'"source":"{lab.node("lab-a").uplink_address}"' in seen


@pytest.mark.node
@in_guest
def test_external_host_connects_to_the_public_port_of_a_guest_and_the_guest_answers(
    guest: FromGuest, lab: Lab
) -> None:
    port = f"/dev/tcp/{lab.node('lab-a').uplink_address}/{ALICES_PUBLIC_PORT}"
    answer = lab.site.run(["timeout", "5", "bash", "-c", f"read -r line < {port} && echo $line"]).stdout
    assert answer.startswith("SSH-2.0-")
