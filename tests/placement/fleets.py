"""Random fleets and requests, and the expected results of placement, computed by a check of every slot.

The expected results share no code with placement: they use the PCI functions and states of a fleet directly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final, get_args

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.placement_request import PlacementRequest
from control_plane.decisions.placing.suitability import Demand
from control_plane.work import slot_counts, tables
from deploy.embedded.lab_catalogue import SMALL
from events.entries import SkuContent
from events.offers import encoded, offer_of
from events.slots import FabricMetadata, SlotDevice
from events.values import Fabric, NetworkMode, NodeId, SkuName, SlotId, pci_address
from read_models import nodes, slots
from tests.decisions.histories import REQUESTED

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SKUS: Final = ("a", "b")
MODELS: Final = ("H100", "H200")
FABRICS: Final[tuple[Fabric, ...]] = ("ib", "roce", "ethernet", "none")
IMAGE: Final = "lab-guest"
MODES: Final[tuple[NetworkMode, ...]] = get_args(NetworkMode)
MOST_HOSTS: Final = 6
MOST_SLOTS: Final = 5
_STATES: Final = (*["free"] * 6, "claimed", "claimed", "quarantined", "retired")
_LINKS: Final[dict[Fabric, FabricMetadata]] = {
    "ib": FabricMetadata("infiniband", "mlx5_0"),
    "roce": FabricMetadata("ethernet", "mlx5_0"),
    "ethernet": FabricMetadata("ethernet", None),
}


@dataclass
class SlotModel:
    """A slot. `gpus` are model and NUMA node of each GPU; `fabric_numa` is the NUMA node of its fabric function."""

    id: SlotId
    skus: tuple[str, ...]
    vcpus: int
    memory_mib: int
    numa: int | None
    gpus: list[tuple[str, int]]
    fabric: Fabric
    fabric_numa: int
    fabric_down: bool
    state: str
    blocked: bool
    excluded: bool

    def devices(self) -> Iterator[SlotDevice]:
        """Yield the PCI functions of the slot."""
        for number, (model, numa) in enumerate(self.gpus):
            yield SlotDevice(
                pci_address(f"0000:0{number}:00.0"), "gpu", "10de:2330", "gpu", numa, model=model
            )
        if self.fabric != "none":
            state = "down" if self.fabric_down else "active"
            link = msgspec.structs.replace(_LINKS[self.fabric], port_state=state)
            address = pci_address("0000:0f:00.0")
            yield SlotDevice(address, "fabric", "15b3:1021", "fabric", self.fabric_numa, fabric_metadata=link)

    @property
    def fit(self) -> bool:
        return not (self.blocked or self.excluded)

    @property
    def is_down(self) -> bool:
        """Whether the slot has a fabric, and its port carries no traffic."""
        return self.fabric_down and self.fabric != "none"


@dataclass
class HostModel:
    """A node and its slots."""

    name: str
    slots: list[SlotModel] = field(default_factory=list)
    enrolled: bool = True
    seconds_since_heartbeat: int = 0
    resynced: bool = True
    missing: bool = False
    blocked: bool = False
    excluded: bool = False
    has_image: bool = True
    unsupported: frozenset[NetworkMode] = frozenset()
    simulated: bool = False


@dataclass(frozen=True)
class Case:
    """A fleet and a request."""

    hosts: Sequence[HostModel]
    demand: Demand
    count: int
    mode: NetworkMode = "private-nat"

    @property
    def wanted(self) -> PlacementRequest:
        """The request in the form that placement takes."""
        request = msgspec.structs.replace(REQUESTED, slot_count=self.count, network_mode=self.mode)
        return PlacementRequest(request, self.demand, (), timedelta(seconds=30), simulated_allowed=False)


def free_slot(host: str, index: int) -> SlotModel:
    """Return a free slot without GPU and fabric."""
    return SlotModel(
        id=SlotId(f"{host}/{index}"),
        skus=("a",),
        vcpus=2,
        memory_mib=192,
        numa=None,
        gpus=[],
        fabric="none",
        fabric_numa=0,
        fabric_down=False,
        state="free",
        blocked=False,
        excluded=False,
    )


def random_case(random: Random) -> Case:
    """Return a random fleet and a random request."""
    hosts = [_host(random, number) for number in range(random.randint(0, MOST_HOSTS))]
    gpu_count = random.choice((0, 0, 0, 0, 1, 2))
    sku = msgspec.structs.replace(
        SMALL,
        vcpus=random.choice((1, 1, 2)),
        memory_mib=random.choice((96, 96, 192)),
        gpu_count=gpu_count,
        gpu_model=random.choice((None, *MODELS)) if gpu_count else None,
        fabric=random.choice((*FABRICS, "none", "none")),
        numa=random.choice(("any", "any", "any", "single")),
        placement=random.choice(("pack", "spread")),
    )
    accepted = [each for each in FABRICS if each == sku.fabric or random.random() < 0.4]
    random.shuffle(accepted)
    fabrics = (sku.fabric,) if random.random() < 0.4 else tuple(accepted)
    count, mode = random.choice((1, 1, 1, 1, 2, 3)), random.choice(MODES)
    return Case(hosts, Demand(SkuName("a"), sku, fabrics), count, mode)


def _host(random: Random, number: int) -> HostModel:
    def rarely() -> bool:
        return random.random() < 0.05

    name = f"n{number}"
    host = HostModel(
        name,
        enrolled=not rarely(),
        seconds_since_heartbeat=60 if rarely() else 1,
        resynced=not rarely(),
        missing=rarely(),
        blocked=rarely(),
        excluded=rarely(),
        has_image=not rarely(),
        unsupported=frozenset(mode for mode in MODES if rarely()),
        simulated=rarely(),
    )
    # Most slots of a host are alike, as on real hosts.
    alike = _slot(random, name, 0)
    for index in range(random.randint(0, MOST_SLOTS)):
        slot = _slot(random, name, index)
        if random.random() < 0.6:
            same = ("skus", "vcpus", "memory_mib", "numa", "gpus", "fabric", "fabric_numa")
            for each in same:
                setattr(slot, each, getattr(alike, each))
        host.slots.append(slot)
    return host


def _slot(random: Random, host: str, index: int) -> SlotModel:
    skus = random.choice((("a",), ("a",), ("a", "b"), ("a", "b"), ("b",), ()))
    return SlotModel(
        id=SlotId(f"{host}/{index}"),
        skus=skus,
        vcpus=random.choice((1, 2, 2)),
        memory_mib=random.choice((96, 192, 192)),
        numa=random.choice((None, 0, 0, 1)),
        gpus=[(random.choice(MODELS), random.choice((0, 0, 1))) for _ in range(random.choice((0, 1, 1, 2)))],
        fabric=random.choice(FABRICS),
        fabric_numa=random.choice((0, 0, 1)),
        fabric_down=random.random() < 0.1,
        state="discovered" if not skus else random.choice(_STATES),
        blocked=random.random() < 0.07,
        excluded=random.random() < 0.07,
    )


def mismatch(slot: SlotModel, demand: Demand) -> str | None:
    """Return why a slot can never serve a demand, or None. Its state is ignored."""
    sku: SkuContent = demand.sku
    if demand.name not in slot.skus:
        return "other_sku"
    if sku.gpu_count:
        models = {model for model, _ in slot.gpus}
        if len(slot.gpus) != sku.gpu_count or (sku.gpu_model is not None and models != {sku.gpu_model}):
            return "other_gpu"
    if slot.vcpus < sku.vcpus or slot.memory_mib < sku.memory_mib:
        return "too_small"
    if slot.fabric not in demand.fabrics and "none" not in demand.fabrics:
        return "other_fabric"
    parts = [numa for _, numa in slot.gpus] + ([slot.fabric_numa] if slot.fabric != "none" else [])
    if sku.numa == "single" and (slot.numa is None or any(part != slot.numa for part in parts)):
        return "several_numa_nodes"
    if slot.is_down and "none" not in demand.fabrics:
        return "fabric_down"
    return None


_ORDER: Final = (
    "other_sku",
    "other_gpu",
    "too_small",
    "other_fabric",
    "several_numa_nodes",
    "fabric_down",
)


def expected_code(host: HostModel, case: Case) -> str:
    """Return the first reason why a host is not suitable, or `suitable`."""
    slots = [slot for slot in host.slots if slot.state != "retired"]
    found = [mismatch(slot, case.demand) for slot in slots]
    suited = [slot for slot, reason in zip(slots, found, strict=True) if reason is None]
    able = len(suited) + found.count("fabric_down")
    fit = [slot for slot in suited if slot.fit and slot.state != "quarantined"]
    idle = [slot for slot in suited if slot.state == "free"]
    reasons: list[tuple[bool, str]] = [
        (not slots and not host.enrolled, "registered"),
        (not slots, "no_slots"),
        (not able, max((each for each in found if each), key=_ORDER.index, default="")),
        (able < case.count, "too_few_slots"),
        (not host.enrolled, "registered"),
        (host.seconds_since_heartbeat > 30, "unreachable"),
        (not host.resynced, "resyncing"),
        (host.missing, "missing"),
        (host.blocked, "bridge.absent"),
        (host.excluded, "bring_ups_failed"),
        (not host.has_image, "image_missing"),
        (case.mode in host.unsupported, "network_mode_unsupported"),
        (len(suited) < case.count, "fabric_down"),
        (len(fit) < case.count, "slots_blocked"),
        (len(idle) >= case.count > sum(slot.fit for slot in idle), "slots_blocked"),
        (sum(slot.state == "free" for slot in fit) < case.count, "no_free_slot"),
        (host.simulated, "simulated"),
    ]
    return next((code for applies, code in reasons if applies), "suitable")


def usable(host: HostModel, demand: Demand) -> list[SlotModel]:
    """Return the slots of a host that an allocation with this demand can get now, whatever the state of the host."""
    return [
        each for each in host.slots if each.fit and each.state == "free" and mismatch(each, demand) is None
    ]


async def write(conn: AsyncConnection, hosts: Sequence[HostModel], *, counted: int) -> None:
    """Replace the rows of all nodes and slots by those of a fleet. Only the slots of the first `counted` hosts are
    counted, as if the other hosts had been found later.
    """
    for table in (slots.slot, nodes.node, tables.node_seen, tables.slot_counts):
        await conn.execute(sa.delete(table))
    if not hosts:
        return
    await conn.execute(sa.insert(nodes.node), [_node_row(each) for each in hosts])
    now = sa.func.clock_timestamp()
    for each in hosts:
        seen_at = now - timedelta(seconds=each.seconds_since_heartbeat)
        row = {"node_id": each.name, "agent_version": "1", "spooled_reports": 0, "resynced": each.resynced}
        await conn.execute(sa.insert(tables.node_seen).values(seen_at=seen_at, **row))
    if rows := [_slot_row(slot) for host in hosts for slot in host.slots]:
        await conn.execute(sa.insert(slots.slot), rows)
    await slot_counts.count_again(conn, frozenset(NodeId(host.name) for host in hosts[:counted]))


def _node_row(host: HostModel) -> dict[str, Any]:
    return {
        "node_id": host.name,
        "version": 1,
        "state": "enrolled" if host.enrolled else "registered",
        "subnet": "10.100.1.0/24",
        "l2_domain": "default",
        "token_sha256": "",
        "token_expires_at": NOW,
        "key_thumbprint": "key" if host.enrolled else None,
        "images": [IMAGE] if host.has_image else [],
        "missing": ["kvm"] if host.missing else [],
        "unsupported_modes": dict.fromkeys(host.unsupported, "no module"),
        "simulated": host.simulated,
        "blocked": host.blocked,
        "drift": [{"kind": "bridge.absent", "blocks": True}] if host.blocked else None,
        "excluded": {"code": "bring_ups_failed", "message": "three failures"} if host.excluded else None,
    }


def _slot_row(slot: SlotModel) -> dict[str, Any]:
    devices = tuple(slot.devices())
    host, _, index = slot.id.partition("/")
    network = ("l2_domain", "mac_address", "private_ip", "subnet", "gateway", "bridge")
    return {
        "slot_id": slot.id,
        "node_id": host,
        "slot_index": int(index),
        "version": 1,
        "state": slot.state,
        "vcpus": slot.vcpus,
        "memory_mib": slot.memory_mib,
        "network_device": "slice0",
        "devices": msgspec.to_builtins(devices),
        "numa_node": slot.numa,
        "offer": encoded(offer_of(devices, slot.numa)),
        "skus": list(slot.skus) or None,
        "blocked": slot.blocked,
        "excluded": {"code": "bring_ups_failed", "message": "three failures"} if slot.excluded else None,
        "allocation_id": None if slot.state in ("free", "discovered") else REQUESTED.allocation_id,
        **dict.fromkeys(network, "x" if slot.skus else None),
    }
