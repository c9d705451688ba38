"""No attack of the table arrives or takes effect, neither from a tap nor from inside a guest (P18); what may pass does.

Every attack is followed by what is allowed on the same road, and arrives itself once its guards are taken away.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from node_agent.lab.guest import GuestImage, ensure_guest
from node_agent.lab.lab import Lab
from tests.contract.network.attack_table import ATTACKS, NO_MEANING
from tests.contract.network.attacks import Kind, Victim
from tests.contract.network.conftest import clear
from tests.contract.network.guards import taken_away
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.scene import ALICES_DOOR, BOB, BRIDGE, WORLD, Places, Scene, slice_of
from tests.contract.network.senders import ALICE, SENDING_PROGRAM, FromGuest, FromTap, Sender, booted
from tests.contract.network.slices import GATEWAY, run
from tests.contract.network.wire import Wire, hardware_address, is_arp_reply, who_has
from tests.servers.lab import kept_folder

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real


@pytest.fixture(scope="module")
def image() -> GuestImage:
    return ensure_guest(kept_folder() / "guest", print, (SENDING_PROGRAM,))


@pytest.fixture(scope="module", name="host")
def _host(lab: Lab, image: GuestImage) -> Iterator["Real"]:
    """With the guest's image made before: from within the node's network, packages cannot be downloaded."""
    # Here and not above: the packages of the host drivers are an extra, and these tests are collected without it.
    from tests.contract.network.lab_host import real_host
    from tests.contract.network.slices import NETWORK

    with real_host(lab.node("lab-a"), NETWORK) as host:
        run(gateway_of(host).to_apply())
        (uplink,) = host.links.addresses("uplink0")
        for slot in (ALICE, BOB):
            for aspect in aspects_of(host):
                run(aspect.to_apply(slice_of(slot, uplink)))
        # Within it, the kernel believes the first of two who tell where an address is.
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
            assert wire.ask(who_has(GATEWAY, mac=ALICE.mac, own=ALICE.ip), is_arp_reply) is not None
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
    """Bob has just spoken with the gateway, which so knows where he is."""
    node = lab.node("lab-a")
    assert bobs_wire.ask(who_has(GATEWAY, mac=BOB.mac, own=BOB.ip), is_arp_reply) is not None
    (uplink,) = host.links.addresses("uplink0")
    places = Places(uplink, node.management_address, lab.gateway_address, hardware_address(ALICE.tap))
    return Scene(host, node, places, sender, bobs_wire)


def test_every_kind_is_tried_on_every_victim_or_has_no_meaning_for_it() -> None:
    tried = {(attack.kind, attack.victim) for attack in ATTACKS.values()}
    assert tried | NO_MEANING.keys() == set(product(get_args(Kind), get_args(Victim)))
    assert tried & NO_MEANING.keys() == set()


@pytest.mark.node
@pytest.mark.parametrize("attack", ATTACKS)
def test_it_neither_arrives_nor_takes_effect(attack: str, scene: Scene) -> None:
    assert not ATTACKS[attack].arrives(scene)


@pytest.mark.node
@pytest.mark.parametrize("attack", ATTACKS)
def test_it_arrives_once_its_guards_are_taken_away(attack: str, scene: Scene) -> None:
    with taken_away(scene, *ATTACKS[attack].guards):
        assert ATTACKS[attack].arrives(scene)


@pytest.mark.node
@pytest.mark.parametrize("sender", ["tap"], indirect=True, scope="module")
@pytest.mark.parametrize("attack", [name for name, attack in ATTACKS.items() if len(attack.guards) > 1])
def test_it_does_not_arrive_as_long_as_one_of_its_guards_is_left(attack: str, scene: Scene) -> None:
    guards = ATTACKS[attack].guards
    for left in guards:
        with taken_away(scene, *(guard for guard in guards if guard is not left)):
            assert not ATTACKS[attack].arrives(scene)


in_guest = pytest.mark.parametrize("sender", ["guest"], indirect=True, scope="module")


@pytest.fixture
def guest(sender: Sender) -> FromGuest:
    assert isinstance(sender, FromGuest)
    return sender


@pytest.mark.node
@in_guest
def test_a_guest_is_given_its_address(guest: FromGuest) -> None:
    assert f"lease of {ALICE.ip} obtained" in guest.do("udhcpc -f -q -n -i eth0 -s /bin/true 2>&1")


@pytest.mark.node
@in_guest
def test_a_guest_pings_the_world(guest: FromGuest) -> None:
    assert "1 packets received" in guest.do(f"ping -c 1 -W 5 {WORLD}")


@pytest.mark.node
@in_guest
def test_a_guest_connects_to_the_world_and_is_answered(guest: FromGuest, lab: Lab) -> None:
    assert guest.do(f"echo hello | nc -w 5 {WORLD} 7") == "hello\n"
    seen = guest.do(f"wget -q -O - http://{WORLD}/")
    assert f'"source":"{lab.node("lab-a").uplink_address}"' in seen


@pytest.mark.node
@in_guest
def test_the_world_connects_to_a_port_in_the_open_and_the_guest_answers(guest: FromGuest, lab: Lab) -> None:
    port = f"/dev/tcp/{lab.node('lab-a').uplink_address}/{ALICES_DOOR}"
    answer = lab.site.run(["timeout", "5", "bash", "-c", f"read -r line < {port} && echo $line"]).stdout
    assert answer.startswith("SSH-2.0-")
