"""`python -m bench.nodes.node_inside IMAGES FEW MANY`: measure on this host, and print a round as JSON.

IMAGES is the folder of the guest images; FEW and MANY are the two numbers of slots with which the node is measured.
The host is a lab node: the drivers find its own Open vSwitch, nftables and libvirt. At the end the objects of slots are
removed; objects that serve the whole node stay.
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
from node_agent.aspects.flows import cookie_of, flows_of, port_number
from node_agent.aspects.gateway import node_network
from node_agent.aspects.links import own_mac
from node_agent.aspects.translations import rules_of
from node_agent.drivers.network.ovs import DEVICE
from node_agent.host.desired_slice import network_of, slice_of
from node_agent.host.drift import Drifts
from node_agent.host.host import Answered, Host
from node_agent.host.slices import Slice, Step, tap_of
from node_agent.host.snapshots import host_snapshot
from node_agent.packets.rules import TABLE, Rule
from node_agent.real_host import real_host
from node_agent.runtime.clock import NodeClock
from node_agent.runtime.halt import Halt
from node_agent.settings import Settings, SlotSettings
from node_agent.slots.accept import Acceptance
from node_agent.slots.converge import make
from node_agent.slots.fence import FenceFiles
from node_agent.slots.inspection import Inspection
from node_agent.slots.outcomes import Outcomes
from node_agent.slots.slot_work import SlotWork
from node_agent.slots.slots import Slots
from node_agent.slots.steps import run_steps
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from node_agent.transport.trust import proved_by
from tasks.orders import ApplySlice, Machine, Order, Readiness, SliceNetwork, Token
from tasks.reports import SliceReady

NETWORKS: Final = 20
SURVEYS: Final = 50
BOOT_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.2
READINESS_PORT: Final = 22
SUBNET: Final = Ipv4Subnet("10.100.1.0/24")
GATEWAY: Final = ipv4_address("10.100.1.1")
_NAMES: Final = UUID("0190f7a0-0000-7000-8000-000000000002")
_KEY: Final = ssh_public_key(
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJUNhMTvfjLQo4LVPLtj+JwKLEfEyHSmnjEdHhkqFqP7 bench"
)
Series = dict[str, list[float]]


def main(arguments: Sequence[str]) -> None:
    """Run all measurements of this round, and print their series as one JSON object."""
    images, few, many = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    found = Series()
    with _node(images, few) as (host, settings):
        found |= _networks(_without_guests(host), settings)
        found["survey"] = _survey_times(host, settings)
        found["network_survey_few"] = _survey_times(_without_guests(host), settings)
    with _node(images, many) as (host, settings):
        found["network_survey_many"] = _survey_times(_without_guests(host), settings)
    sys.stdout.write(json.dumps(found))


@contextmanager
def _node(images: Path, slots: int) -> Iterator[tuple[Host, Settings]]:
    """Prepare this host as a node with the given number of slots."""
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
    """Return milliseconds to create a slot's network with the agent's drivers, and with a sequence of commands."""
    order, taken = _order(settings, SlotIndex(0)), Series(network=[], commands=[])
    for _ in range(NETWORKS):
        taken["network"].append(_milliseconds(lambda: _make(host, order)))
        _remove(host, order)
        taken["commands"].append(_milliseconds(lambda: _make_with_commands(settings, order)))
        with host_snapshot():
            left = [step.name for step in _steps(host, order)]
        assert left == [], (
            f"the shell commands must create the agent's network, but the agent would still perform the steps {left}"
        )
        _remove(host, order)
    return taken


def _survey_times(host: Host, settings: Settings) -> list[float]:
    """Return the milliseconds of each survey of a node that has a slice in every slot and nothing to repair."""
    orders = [_order(settings, slot.index) for slot in settings.slots]
    for order in orders:
        _make(host, order)
    if host.aspects[-1].name == "machine":
        _await_guests(host, orders)
        for order in orders:
            host.reachability.watch(_slice(order), READINESS_PORT)
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as name,
        _survey(host, settings, orders, Path(name)) as survey,
    ):
        taken = list[float]()
        while len(taken) < SURVEYS:
            if (milliseconds := survey()) is not None:
                taken.append(milliseconds)
    for order in orders:
        _remove(host, order)
    return taken


@contextmanager
def _survey(
    host: Host, settings: Settings, orders: Iterable[Order], folder: Path
) -> Iterator[Callable[[], float | None]]:
    """Build the agent's own survey over slots with these orders, which are already carried out.

    The returned function runs one survey and returns its milliseconds. If the survey finds drift, the function repairs
    the slots and returns None.
    """
    reporter = Reporter(Spool(folder / "spool"), NodeClock())
    drifts = Drifts(reporter.report, NodeClock().now, lambda: None)
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
            slot, _ = acceptance.admit_or_raise(order)
        with slot.while_current(order) as held:
            assert held is not None
            ready = SliceReady(
                slot_id=order.slot_id,
                allocation_id=order.allocation_id,
                address=order.body.network.private_ip,
                port=READINESS_PORT,
                banner="SSH-2.0-bench",
            )
            slot.keep(held.model_copy(update={"outcome": ready}))

    def survey() -> float | None:
        began = time.perf_counter()
        with host_snapshot():
            found = inspection.prepare(Halt())
            due, unread = acceptance.due()
            inspection.report(found, unread)
        took = (time.perf_counter() - began) * 1000
        assert unread == []
        for slot in due:
            acceptance.reconcile_slot(slot)
        return None if due else took

    yield survey
    slots.close()


def _await_guests(host: Host, orders: Iterable[Order]) -> None:
    """Wait until all guests have booted: booting guests would slow down the survey."""
    ends = time.monotonic() + BOOT_SECONDS
    for order in orders:
        while not isinstance(host.probe(order.body.network.private_ip, READINESS_PORT, "SSH-"), Answered):
            assert time.monotonic() < ends, (
                f"the guest of {order.slot_id} did not answer in {BOOT_SECONDS:.0f} s"
            )
            time.sleep(POLL_SECONDS)


def _steps(host: Host, order: Order) -> list[Step]:
    return [step for aspect in host.aspects for step in aspect.to_apply(_slice(order))]


def _slice(order: Order) -> Slice:
    assert isinstance(order.body, ApplySlice)
    return slice_of(order, order.body)


def _make(host: Host, order: Order) -> None:
    make(_slice(order), host, Halt())


def _remove(host: Host, order: Order) -> None:
    host.reachability.leave(index_of(order.slot_id))
    removed = network_of(order.slot_id, order.body.network)
    for aspect in reversed(host.aspects):
        run_steps(aspect.to_remove(removed), Halt())


def _make_with_commands(settings: Settings, order: Order) -> None:
    """Create a slot's network with command-line tools, equal to the result of the agent's drivers."""
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
        # The next round reuses this round's DHCP server: two servers would answer alternately.
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
