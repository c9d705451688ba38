"""Situations in which a program reaches each of its failpoints with orders in flight, and the state in which the system
must be after the program's death and restart.

The load is the same in nearly all cases: one allocation is active. While the node's agent is down, this allocation is
released and another one is created, so that an order of each kind is in flight. If a program of the control plane is to
die, the agent is restarted only after this death; otherwise it could finish the orders before. `SITUATIONS` describes
the cases in which this load does not bring the program to its failpoint.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from events.values import Ipv4Address
from node_agent.aspects.flows import Flow
from node_agent.aspects.machine_plans import FoundDomain, FoundProcess
from node_agent.aspects.ports import Port
from node_agent.lab.simulated.host import HeldFlow, HeldNeighbour, State
from node_agent.packets.routing import Neighbour
from tasks.workflows import FAILPOINTS, Declared, Process
from tests.connections import outbound
from tests.faults.system import DISK_IMAGE, NODE, ON_CARDS, WITH_ROOT_DISK, System
from tests.waiting import until


@dataclass
class Load:
    """Allocations of one fault case: `old` is active at the start, and `new` is created while the agent is down. The
    case releases `old`, stops it if `off` is true, or leaves it active if `kept` is true.
    """

    old: str = ""
    new: str = ""
    ingress: str = ""
    """The ingress rule of the old allocation."""
    kept: bool = False
    off: bool = False


@dataclass(frozen=True)
class Situation:
    """Difference of a fault case from the usual load. `keep` leaves the old allocation active. `disturb` changes the
    simulated host while the agent is down. `provoke` causes further work once the program runs with its failpoint. If
    `reports` is true, the agent is started then, because the program reaches its failpoint only when a report arrives.
    """

    keep: bool = False
    stop: bool = False
    """Whether the old allocation is stopped instead of released."""
    reports: bool = False
    disturb: Callable[[System, Load, State], None] | None = None
    provoke: Callable[[System, Load], None] | None = None
    ingress: bool = False
    """Whether the old allocation has an ingress rule."""
    card: bool = False
    """Whether the machines have virtual functions as network cards."""
    root_disk: bool = False
    """Whether the machines have root disks."""
    ask: Callable[[System, Load], None] | None = None
    """Function that sends a further request while the agent is down, in addition to the usual load."""
    starts: int = 0
    """How often the machine of the old allocation is started again because `disturb` changed the host."""


@dataclass(frozen=True)
class Case:
    """Case of a fault test: a program that is killed at one of its failpoints."""

    point: str
    process: Process

    def __str__(self) -> str:
        return f"{self.process}:{self.point}"

    @property
    def situation(self) -> Situation:
        work = FAILPOINTS[self.point].work
        return SITUATIONS.get((work, self.process)) or SITUATIONS.get((work, None)) or USUAL


def tap_muted(system: System, load: Load, state: State) -> None:
    place = system.place(load.old)
    state.taps = [replace(tap, mtu=tap.mtu - 8) if tap.name == place else tap for tap in state.taps]


def paused(system: System, load: Load, state: State) -> None:
    place = system.place(load.old)
    state.domains = [replace(each, state="paused") if each.name == place else each for each in state.domains]


def machine_moved(system: System, load: Load, state: State) -> None:
    """Pin the old allocation's virtual machine to another CPU of the simulated host, as an operator could."""
    place = system.place(load.old)
    state.domains = [_moved(each) if each.name == place else each for each in state.domains]


def _moved(domain: FoundDomain) -> FoundDomain:
    assert domain.guest is not None
    return replace(domain, guest=replace(domain.guest, place=replace(domain.guest.place, pins=("63",))))


def domain_removed(system: System, load: Load, state: State) -> None:
    place = system.place(load.old)
    state.domains = [each for each in state.domains if each.name != place]


def domain_removed_and_process_running(system: System, load: Load, state: State) -> None:
    """Remove the old allocation's libvirt domain from the simulated host while its QEMU process continues."""
    domain_removed(system, load, state)
    state.strays.append(FoundProcess(system.place(load.old), pid=4711, started=1))


def connected(system: System, load: Load, state: State) -> None:
    address = system.show(load.old)["slots"][0]["private_ip"]
    state.connections.append(outbound(Ipv4Address(address)))


def foreign_flow(system: System, load: Load, state: State) -> None:
    state.flows.append(HeldFlow(state.bridges[0].name, 0xBAD, Flow(1, frozenset(), "NORMAL")))


def foreign_port(system: System, load: Load, state: State) -> None:
    state.ports.append(Port("extra0", state.bridges[0].name, 1))


def route_deleted(system: System, load: Load, state: State) -> None:
    state.routes.pop()


def static_neighbour(system: System, load: Load, state: State) -> None:
    wrong = Neighbour(Ipv4Address(system.show(load.old)["slots"][0]["private_ip"]), "02:00:00:00:00:99")
    state.neighbours.append(HeldNeighbour(state.bridges[0].name, wrong))


def memory_lost(system: System, load: Load, state: State) -> None:
    """Reset the simulated host as after a power cut: everything except its disks is lost."""
    empty = State(uplinks=state.uplinks, disks=state.disks, starts=state.starts)
    for name in State.__struct_fields__:
        setattr(state, name, getattr(empty, name))


def long_spool(system: System, load: Load, state: State) -> None:
    """Add copies of a report that was delivered long ago to the agent's spool file, so that the file is long."""
    spool = system.node.folder / "agent" / "spool" / "reports.jsonl"
    [first, *_] = spool.read_bytes().splitlines(keepends=True)
    spool.write_bytes(first * (300 * 1024 // len(first)) + spool.read_bytes())


def redis_flushed(system: System, load: Load) -> None:
    until(lambda: system.in_queue() > 0, "orders are in the queue")
    system.redis().flushall()


def rebuild_ordered(system: System, load: Load) -> None:
    system.call("POST", "/projections/allocations/rebuild")


def node_joins(system: System, load: Load) -> None:
    name = f"lab-{time.monotonic_ns() % 10**9}"
    system.add_node(name)
    until(lambda: system.died_at is not None or system.is_settled(name), "another node joined", 60)


def node_is_revoked(system: System, load: Load) -> None:
    name = f"lab-{time.monotonic_ns() % 10**9}"
    system.call("POST", "/nodes", {"id": name})
    system.call("POST", f"/nodes/{name}/revoke", {"reason": "its disk was sold"})


def operation_asked(system: System, load: Load) -> None:
    system.call("POST", "/tasks", {"kind": "node.verify", "node_id": NODE})


def ingress_created(system: System, load: Load) -> None:
    load.ingress = system.call("POST", f"/allocations/{load.old}/ingress", {"protocol": "tcp", "port": 22})[
        "id"
    ]


def ingress_deleted(system: System, load: Load) -> None:
    system.call("DELETE", f"/allocations/{load.old}/ingress/{load.ingress}")


USUAL: Final = Situation()
SITUATIONS: Final[dict[tuple[str, Process | None], Situation]] = {
    ("granting", None): Situation(provoke=node_joins),
    ("revoking", None): Situation(provoke=node_is_revoked),
    ("following sessions", "api"): Situation(provoke=node_joins),
    ("following sessions", "dispatcher"): Situation(provoke=redis_flushed),
    ("operating", None): Situation(ask=operation_asked),
    ("restoring", None): Situation(provoke=redis_flushed),
    ("taking reports", None): Situation(reports=True),
    ("rebuilding", None): Situation(provoke=rebuild_ordered),
    ("commanding", "projector"): Situation(provoke=rebuild_ordered),
    ("interrupting", None): Situation(keep=True, disturb=domain_removed, starts=1),
    ("compacting", None): Situation(disturb=long_spool),
    ("link.set_tap", None): Situation(keep=True, disturb=tap_muted),
    ("link.take", None): Situation(card=True),
    ("link.give_back", None): Situation(card=True),
    ("machine.fetch_image", None): Situation(root_disk=True),
    ("machine.make_root_disk", None): Situation(root_disk=True),
    ("machine.wipe_root_disk", None): Situation(root_disk=True),
    ("machine.shut_down", None): Situation(stop=True),
    ("machine.pin", None): Situation(keep=True, disturb=machine_moved),
    ("machine.resume", None): Situation(keep=True, disturb=paused),
    ("machine.end_stray", None): Situation(keep=True, disturb=domain_removed_and_process_running, starts=1),
    ("translation.map", None): Situation(keep=True, ask=ingress_created),
    ("translation.unmap", None): Situation(keep=True, ingress=True, ask=ingress_deleted),
    ("translation.flush_connections", None): Situation(disturb=connected),
    ("gateway.remove_foreign_flows", None): Situation(keep=True, disturb=foreign_flow),
    ("gateway.remove_foreign_ports", None): Situation(keep=True, disturb=foreign_port),
    ("gateway.set_routes", None): Situation(keep=True, disturb=route_deleted),
    ("gateway.delete_neighbours", None): Situation(keep=True, disturb=static_neighbour),
    **{
        (each, None): Situation(keep=True, disturb=memory_lost, starts=1)
        for each in (
            "gateway.set_bridge",
            "gateway.set_rules",
            "gateway.set_address",
            "gateway.set_forwarding",
            "gateway.serve_dhcp",
        )
    },
}

SEPARATELY_TESTED: Final = {"joining", "withdrawing", "putting back"}
"""Kinds of work with a test of their own beside the matrix, since the load does not bring a program there."""


def cases() -> list[Case]:
    """Return one case for every failpoint and every program that reaches it."""
    return [
        Case(each.name, process)
        for each in FAILPOINTS.values()
        for process in each.processes
        if _is_ours(each, process)
    ]


def _is_ours(each: Declared, process: Process) -> bool:
    return each.work not in SEPARATELY_TESTED and (each.work, process) != ("commanding", "dispatcher")


def begin(system: System, load: Load, situation: Situation) -> None:
    """Prepare a fault case: create an active allocation, with or without an ingress rule, stop the agent, and queue the
    order of a new allocation.
    """
    fields: dict[str, object] = {"sku": ON_CARDS if situation.card else system.sku}
    if situation.root_disk:
        fields = {"sku": WITH_ROOT_DISK, "image": DISK_IMAGE}
    load.old = system.create(network_mode="public-nat", **fields)
    until(lambda: system.is_active(load.old), "the first allocation is active")
    if situation.ingress:
        ingress_created(system, load)
        until(lambda: system.is_reachable(load.old), "the first allocation is reachable from outside")
    system.take_down(system.node.agent)
    load.new = system.create(**fields)
    until(lambda: system.in_queue() > 0, "an order is in the queue")


def end_old_allocation(system: System, load: Load) -> None:
    """Release or stop the old allocation, unless the case keeps it."""
    if load.off:
        system.stop(load.old)
    elif not load.kept:
        system.release(load.old)


def orders_in_flight(system: System, load: Load) -> bool:
    return system.in_queue() >= (1 if load.kept else 2)


def has_settled(system: System, load: Load) -> bool:
    ended = "stopped" if load.off else "released"
    rested = system.is_active(load.old) if load.kept else system.state(load.old) == ended
    return rested and system.is_active(load.new)
