"""What a slot offers to a slice, as placement compares it with a SKU: GPUs, fabric, and their positions in the host.

It follows from the PCI functions that the node describes for the slot. Slots with equal offers, sizes and approved SKUs
are one class: placement decides once for the class, and then searches for free slots of it.
"""

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from events.slots import FabricMetadata, SlotDevice
from events.values import Fabric, SkuName

_WEAKEST_FIRST: Final[Sequence[Fabric]] = ("ethernet", "roce", "ib")
_UP: Final = ("active", "up")
"""States of a port that carries traffic: that of an RDMA port, and that of a network link."""


class Locality(IntEnum):
    """How close the PCI functions of a slot are to each other; a lower number is closer."""

    ROOT_PORT = 0
    """All GPUs and fabric functions are below one root port, or there is at most one."""
    NUMA_NODE = 1
    """All GPUs and fabric functions are on one NUMA node."""
    HOST = 2
    """GPUs and fabric functions are on several NUMA nodes, or their NUMA nodes are unknown."""


class Offer(msgspec.Struct, frozen=True):
    """What a slot offers, apart from processors and memory."""

    gpu_model: str | None = None
    """Model of the GPUs; None if there are none, if the model is unknown, and if the models differ."""
    gpu_count: int = 0
    """Number of GPUs that the node found."""
    fabric: Fabric = "none"
    """Fabric of the fabric functions, the weakest one if they differ: Ethernet, RoCE, InfiniBand."""
    fabric_down: bool = False
    """Whether a port of a fabric function is known not to carry traffic."""
    numa_nodes: int | None = None
    """Number of NUMA nodes of memory, GPUs and fabric functions; None if one of them is unknown."""
    locality: Locality = Locality.ROOT_PORT
    """How close GPUs and fabric functions are to each other."""


class SlotClass(NamedTuple):
    """What slots of one class have in common. `vcpus` and `memory_mib` are the largest size of a slice; `skus` are the
    SKUs that the slots are offered under, none before their approval.
    """

    skus: tuple[SkuName, ...]
    vcpus: int
    memory_mib: int
    offer: Offer


NOTHING: Final = Offer()
"""The offer of a slot without PCI functions."""


def offer_of(devices: Collection[SlotDevice], numa_node: int | None) -> Offer:
    """Return the offer of a slot with these PCI functions, and with its memory on `numa_node` (None: on any)."""
    found = [each for each in devices if each.kind is not None and each.unreadable is None]
    gpus = [each for each in found if each.use == "gpu"]
    links = [each.fabric_metadata or FabricMetadata() for each in found if each.use == "fabric"]
    models = {each.model for each in gpus}
    workload = [each for each in found if each.use != "card"]
    numa_nodes = {numa_node, *(each.numa_node for each in workload)}
    return Offer(
        gpu_model=next(iter(models)) if len(models) == 1 else None,
        gpu_count=len(gpus),
        fabric=min(map(_fabric_of, links), key=_WEAKEST_FIRST.index, default="none"),
        fabric_down=any(each.port_state not in (None, *_UP) for each in links),
        numa_nodes=None if None in numa_nodes else len(numa_nodes),
        locality=_locality_of(workload),
    )


def encoded(offer: Offer) -> str:
    """Return the text of an offer that is stored in a slot's row. Equal offers have equal texts."""
    return msgspec.json.encode(offer).decode()


def decoded(text: str | None) -> Offer:
    """Return the offer that a slot's row stores. A row without one is of a slot without PCI functions."""
    return NOTHING if text is None else msgspec.json.decode(text, type=Offer)


def _fabric_of(link: FabricMetadata) -> Fabric:
    if link.link_layer == "infiniband":
        return "ib"
    return "ethernet" if link.rdma_device is None else "roce"


def _locality_of(workload: Sequence[SlotDevice]) -> Locality:
    if len(workload) <= 1 or _all_equal([each.root_port for each in workload]):
        return Locality.ROOT_PORT
    return Locality.NUMA_NODE if _all_equal([each.numa_node for each in workload]) else Locality.HOST


def _all_equal(values: Sequence[object]) -> bool:
    """Return whether all values are known and equal."""
    return None not in values and len(set(values)) == 1
