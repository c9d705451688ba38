"""`python -m bench.node_inside IMAGES FEW MANY`: measure on the host that it runs on, and print a round as JSON.

The host is the node's own: its Open vSwitch, nftables and libvirt are those that the drivers find. What slots had is
gone at the end; what a node has for all of them stays.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID, uuid5

import structlog

from events.ssh_keys import ssh_public_key
from events.values import (
    Ipv4Subnet,
    SlotIndex,
    allocation_of,
    image_name,
    index_of,
    ipv4_address,
    mac_address,
    node_id,
    slot_of,
)
from node_agent.accept import Acceptance
from node_agent.clock import NodeClock
from node_agent.converge import make
from node_agent.drift import Drifts
from node_agent.drivers.ovs import DEVICE
from node_agent.fence import FenceFiles
from node_agent.flows import cookie_of, flows_of, port_number
from node_agent.gateway import node_network
from node_agent.halt import Halt
from node_agent.host import Answered, Host
from node_agent.inspection import Inspection
from node_agent.links import own_mac
from node_agent.looks import one_look
from node_agent.outcomes import Outcomes
from node_agent.real_host import real_host
from node_agent.reporter import Reporter
from node_agent.rules import TABLE, Rule
from node_agent.settings import Settings, SlotSettings
from node_agent.slices import Slice, Step, tap_of
from node_agent.slots import Slots
from node_agent.spool import Spool
from node_agent.steps import run_steps
from node_agent.translations import rules_of
from node_agent.trust import proved_by
from node_agent.wanted import network_of, slice_of
from node_agent.work import SlotWork
from tasks.orders import ApplySlice, Machine, Order, Readiness, SliceNetwork, Token
from tasks.reports import SliceReady

NETWORKS: Final = 20
LOOKS: Final = 50
BOOT_SECONDS: Final = 180.0
LOOK_SECONDS: Final = 0.2
READINESS_PORT: Final = 22
SUBNET: Final = Ipv4Subnet("10.100.1.0/24")
GATEWAY: Final = ipv4_address("10.100.1.1")
_NAMES: Final = UUID("0190f7a0-0000-7000-8000-000000000002")
_KEY: Final = ssh_public_key(
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJUNhMTvfjLQo4LVPLtj+JwKLEfEyHSmnjEdHhkqFqP7 bench"
)
Series = dict[str, list[float]]


def main(arguments: Sequence[str]) -> None:
    images, few, many = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    found = Series()
    with _node(images, few) as (host, settings):
        found |= _networks(_without_guests(host), settings)
        found["survey"] = _looks(host, settings)
        found["look_few"] = _looks(_without_guests(host), settings)
    with _node(images, many) as (host, settings):
        found["look_many"] = _looks(_without_guests(host), settings)
    sys.stdout.write(json.dumps(found))


@contextmanager
def _node(images: Path, slots: int) -> Iterator[tuple[Host, Settings]]:
    """The host as a node of so many slots, prepared."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        settings = _settings(images, Path(name), slots)
        host = real_host(settings, SUBNET, lambda: None)
        try:
            run_steps(host.gateway.to_apply(), Halt())
            yield host, settings
        finally:
            host.close()


def _without_guests(host: Host) -> Host:
    return replace(host, aspects=host.aspects[:-1])


def _networks(host: Host, settings: Settings) -> Series:
    """Milliseconds until a slot's network is there: by the drivers, and by one command after the other."""
    order, taken = _order(settings, SlotIndex(0)), Series(network=[], commands=[])
    for _ in range(NETWORKS):
        taken["network"].append(_milliseconds(lambda: _make(host, order)))
        _take_away(host, order)
        taken["commands"].append(_milliseconds(lambda: _command(settings, order)))
        with one_look():
            left = [step.name for step in _steps(host, order)]
        assert left == [], f"the commands made something else: {left}"
        _take_away(host, order)
    return taken


def _looks(host: Host, settings: Settings) -> list[float]:
    """Milliseconds of each survey of a node all of whose slots carry slices, and where nothing is due."""
    orders = [_order(settings, slot.index) for slot in settings.slots]
    for order in orders:
        _make(host, order)
    if host.aspects[-1].name == "machine":
        _await_guests(host, orders)
        for order in orders:
            host.reachability.watch(_slice(order), READINESS_PORT)
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as name,
        _survey(host, settings, orders, Path(name)) as look,
    ):
        taken = list[float]()
        while len(taken) < LOOKS:
            if (milliseconds := look()) is not None:
                taken.append(milliseconds)
    for order in orders:
        _take_away(host, order)
    return taken


@contextmanager
def _survey(
    host: Host, settings: Settings, orders: Iterable[Order], folder: Path
) -> Iterator[Callable[[], float | None]]:
    """The agent's own, over slots that hold these orders, carried out: milliseconds of a look, or None where something
    was due, which is done then.
    """
    reporter = Reporter(Spool(folder / "spool"), NodeClock())
    drifts = Drifts(reporter.tell, NodeClock().now, lambda: None)
    files = FenceFiles(folder / "fence", str.encode)
    indexes = (slot.index for slot in settings.slots)
    slots = Slots(settings.node_id, node_network(settings, SUBNET), indexes, files, lambda: None)
    work = SlotWork(host, Outcomes(reporter), drifts)
    acceptance = Acceptance(slots, work, reporter)
    inspection = Inspection(
        settings.model_copy(update={"state_folder": folder}), host, reporter, drifts, lambda: "enrolled"
    )
    for order in orders:
        with proved_by(order.model_dump_json()):
            slot, _ = acceptance.judge(order)
        with slot.speaking_for(order) as held:
            assert held is not None
            ready = SliceReady(
                slot_id=order.slot_id,
                allocation_id=order.allocation_id,
                address=order.body.network.private_ip,
                port=READINESS_PORT,
                banner="SSH-2.0-bench",
            )
            slot.keep(held.model_copy(update={"outcome": ready}))

    def look() -> float | None:
        began = time.perf_counter()
        with one_look():
            found = inspection.prepare(Halt())
            due, unread = acceptance.due()
            inspection.tell(found, unread)
        took = (time.perf_counter() - began) * 1000
        assert unread == []
        for slot in due:
            acceptance.look_after(slot)
        return None if due else took

    yield look
    slots.close()


def _await_guests(host: Host, orders: Iterable[Order]) -> None:
    """Until all have booted: what they take while they do is no cost of a survey."""
    ends = time.monotonic() + BOOT_SECONDS
    for order in orders:
        while not isinstance(host.probe(order.body.network.private_ip, READINESS_PORT, "SSH-"), Answered):
            assert time.monotonic() < ends, f"the guest of {order.slot_id} does not answer"
            time.sleep(LOOK_SECONDS)


def _steps(host: Host, order: Order) -> list[Step]:
    return [step for aspect in host.aspects for step in aspect.to_apply(_slice(order))]


def _slice(order: Order) -> Slice:
    assert isinstance(order.body, ApplySlice)
    return slice_of(order, order.body)


def _make(host: Host, order: Order) -> None:
    make(_slice(order), host, Halt())


def _take_away(host: Host, order: Order) -> None:
    host.reachability.leave(index_of(order.slot_id))
    gone = network_of(order.slot_id, order.body.network)
    for aspect in reversed(host.aspects):
        run_steps(aspect.to_remove(gone), Halt())


def _command(settings: Settings, order: Order) -> None:
    """The same as the drivers do, as an operator's script would do it."""
    slot = network_of(order.slot_id, order.body.network)
    _run("ip", "tuntap", "add", "dev", slot.tap, "mode", "tap", "user", "0")
    _run("sysctl", "-q", f"net.ipv6.conf.{slot.tap}.disable_ipv6=1")
    _run("ip", "link", "set", slot.tap, "address", own_mac(slot.tap), "mtu", "1500", "arp", "off", "up")
    hosts = settings.run_folder / "dhcp" / "hosts" / slot.tap
    _run("sh", "-c", f"echo {slot.mac},{slot.ip} > {hosts}; chmod 644 {hosts}")
    port = ("add-port", slot.bridge, slot.tap, "--", "set", "interface", slot.tap)
    device = f"external_ids:{DEVICE}={socket.if_nametoindex(slot.tap)}"
    _run("ovs-vsctl", *port, f"ofport_request={port_number(slot.index)}", device)
    flows = "".join(
        f"add cookie={cookie_of(slot.index):#x},priority={flow.priority},"
        + ",".join(f"{name}={value}" if value else name for name, value in sorted(flow.match))
        + f",actions={flow.actions}\n"
        for flow in flows_of(slot)
    )
    _run("ovs-ofctl", "-O", "OpenFlow14", "--bundle", "add-flows", slot.bridge, "-", stdin=flows)
    rules = [{"insert": {"rule": _rule(rule)}} for rule in rules_of(slot, settings.uplink)]
    _run("nft", "-j", "-f", "-", stdin=json.dumps({"nftables": rules}))


def _rule(rule: Rule) -> dict[str, object]:
    place = {"family": rule.family, "table": TABLE, "chain": rule.chain, "comment": rule.owner}
    return {**place, "expr": json.loads(rule.body)}


def _run(*words: str, stdin: str = "") -> None:
    subprocess.run(words, input=stdin, check=True, capture_output=True, text=True)


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _settings(images: Path, folder: Path, slots: int) -> Settings:
    folder.chmod(0o755)
    return Settings(
        node_id=node_id("bench-a"),
        api_url="http://127.0.0.1:1",
        enrolment_token_file=folder / "token",
        state_folder=folder / "state",
        # The next round goes on with this one's DHCP server: two would answer by turns.
        run_folder=Path("/run/sliceplane"),
        images_folder=images,
        datapath_type="netdev",
        slots=tuple(SlotSettings(index=index, vcpus=1, memory_mib=96) for index in range(slots)),
    )


def _order(settings: Settings, index: SlotIndex) -> Order:
    network = SliceNetwork(
        bridge=settings.bridge,
        mac_address=mac_address(f"52:54:00:02:00:{index:02x}"),
        private_ip=ipv4_address(f"10.100.1.{10 + index}"),
        subnet=SUBNET,
        gateway=GATEWAY,
    )
    machine = Machine(
        vcpus=1,
        memory_mib=96,
        image=image_name("lab-guest"),
        hostname=tap_of(index),
        ssh_authorized_keys=(_KEY,),
    )
    name = uuid5(_NAMES, str(index))
    return Order(
        order_id=name,
        node_id=settings.node_id,
        slot_id=slot_of(settings.node_id, index),
        allocation_id=allocation_of(name),
        token=Token(1, 1),
        issued_at=datetime.now(UTC),
        correlation_id=name,
        causation_id=name,
        body=ApplySlice(network=network, machine=machine, readiness=Readiness(deadline_seconds=120)),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
