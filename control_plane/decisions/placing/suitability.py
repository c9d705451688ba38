"""Whether a slot suits a request: its approved SKUs, size, GPUs, fabric and NUMA nodes (ALC-6).

Slots with equal properties are one class, and the decision is the same for all of them. It does not depend on whether a
slot is free now.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from events.allocations import AllocationSpecified
from events.entries import Entry, SkuContent
from events.offers import Locality, Offer, SlotClass
from events.slots import SlotHardware
from events.values import Fabric, SkuName


class Demand(NamedTuple):
    """What an allocation demands of each of its slots: a SKU, and a fabric that its workload accepts, the preferred one
    first. The fabric `none` accepts every slot.
    """

    name: SkuName
    sku: SkuContent
    fabrics: tuple[Fabric, ...]


class Mismatch(StrEnum):
    """Reason why a class of slots does not suit a demand. The slots of a later reason come closer to suiting."""

    OTHER_SKU = "other_sku"
    OTHER_GPU = "other_gpu"
    TOO_SMALL = "too_small"
    OTHER_FABRIC = "other_fabric"
    SEVERAL_NUMA_NODES = "several_numa_nodes"
    FABRIC_DOWN = "fabric_down"


class Suited(NamedTuple):
    """How well a class of slots suits a demand; a lower value suits better.

    `fabric` is the place of the slot's fabric among the accepted ones. `unused` is 1 if the slot has a fabric or GPUs
    that the allocation does not use. `locality` compares the positions of GPUs and fabric functions.
    """

    fabric: int
    unused: int
    locality: Locality


def demand_of(specified: AllocationSpecified) -> Demand:
    """Return what an allocation demands of its slots. Without an app profile, its workload accepts the SKU's fabric
    only.
    """
    sku, profile = specified.sku, specified.app_profile
    fabrics = (sku.content.fabric,) if profile is None else profile.content.fabrics
    return Demand(sku.name, sku.content, fabrics)


def compare(demand: Demand, slots: SlotClass) -> Suited | Mismatch:
    """Return how well a class of slots suits a demand, or why it does not suit."""
    if demand.name not in slots.skus:
        return Mismatch.OTHER_SKU
    if not _has_gpus(demand.sku, slots.offer):
        return Mismatch.OTHER_GPU
    if slots.vcpus < demand.sku.vcpus or slots.memory_mib < demand.sku.memory_mib:
        return Mismatch.TOO_SMALL
    fabric = _accepted_as(demand.fabrics, slots.offer.fabric)
    if fabric is None:
        return Mismatch.OTHER_FABRIC
    if demand.sku.numa == "single" and slots.offer.numa_nodes != 1:
        return Mismatch.SEVERAL_NUMA_NODES
    if slots.offer.fabric_down and fabric != "none":
        if "none" not in demand.fabrics:
            return Mismatch.FABRIC_DOWN
        fabric = "none"
    unused_fabric = fabric == "none" and slots.offer.fabric != "none"
    unused_gpus = slots.offer.gpu_count > demand.sku.gpu_count
    return Suited(demand.fabrics.index(fabric), int(unused_fabric or unused_gpus), slots.offer.locality)


def against_offering(name: SkuName, sku: SkuContent, hardware: SlotHardware, offer: Offer) -> str | None:
    """Return why a slot with this hardware cannot be offered under a SKU; None if it can.

    A slot with another fabric can be offered: allocations with an app profile may accept its fabric.
    """
    if not _has_gpus(sku, offer):
        wanted = _gpus(sku.gpu_count, "" if sku.gpu_model is None else f" of model {sku.gpu_model}")
        model = " of an unknown model" if offer.gpu_model is None else f" of model {offer.gpu_model}"
        return f"the SKU {name} requires {wanted}; the slot has {_gpus(offer.gpu_count, model)}"
    if hardware.vcpus < sku.vcpus or hardware.memory_mib < sku.memory_mib:
        size = f"{sku.vcpus} vCPU and {sku.memory_mib} MiB"
        return f"the SKU {name} has {size}; the slot has {hardware.vcpus} vCPU and {hardware.memory_mib} MiB"
    if sku.numa == "single" and offer.numa_nodes != 1:
        return (
            f"the SKU {name} requires one NUMA node; the slot has {offer.numa_nodes or 'an unknown number'}"
        )
    return None


def _gpus(count: int, of_model: str) -> str:
    return "no GPU" if count == 0 else f"{count} GPU{'' if count == 1 else 's'}{of_model}"


def suggested(
    hardware: SlotHardware, offer: Offer, offered: Iterable[tuple[SkuName, SkuContent]]
) -> SkuName | None:
    """Return the SKU that uses most of a slot: its GPUs first, then its fabric, its memory and its processors. Return
    None if the slot can carry none of the offered SKUs.
    """
    possible = [
        (sku.gpu_count, sku.fabric == offer.fabric, sku.memory_mib, sku.vcpus, name)
        for name, sku in offered
        if against_offering(name, sku, hardware, offer) is None
        and _accepted_as((sku.fabric,), offer.fabric) is not None
    ]
    return max(possible)[-1] if possible else None


def skus_among(entries: Iterable[Entry]) -> list[tuple[SkuName, SkuContent]]:
    """Return names and contents of the SKUs among entries of the catalogue."""
    return [(SkuName(each.name), each.content) for each in entries if isinstance(each.content, SkuContent)]


def difference(wanted: SkuContent, other: SkuContent) -> tuple[object, ...]:
    """Return how much another SKU differs from the wanted one, as a sort key: the most similar SKU sorts first. GPU
    model, number of GPUs, fabric, memory, processors and price are compared, in this order.
    """
    return (
        other.gpu_model != wanted.gpu_model,
        abs(other.gpu_count - wanted.gpu_count),
        other.fabric != wanted.fabric,
        abs(other.memory_mib - wanted.memory_mib),
        abs(other.vcpus - wanted.vcpus),
        abs(Decimal(other.price_per_hour) - Decimal(wanted.price_per_hour)),
    )


def _has_gpus(sku: SkuContent, offer: Offer) -> bool:
    """Return whether a slot has the GPUs of a SKU. A slice gets all GPUs of its slot, so a SKU with GPUs needs exactly
    its number of them.
    """
    if sku.gpu_count == 0:
        return True
    return offer.gpu_count == sku.gpu_count and sku.gpu_model in (None, offer.gpu_model)


def _accepted_as(fabrics: Sequence[Fabric], fabric: Fabric) -> Fabric | None:
    """Return the accepted fabric as which a slot with `fabric` is used; None if it is not accepted."""
    if fabric in fabrics:
        return fabric
    return "none" if "none" in fabrics else None
