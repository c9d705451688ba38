"""Partitions of the NVSwitches that connect the GPUs of one board, such as the eight GPUs of an HGX board.

On a board that several guests share, NVIDIA's fabric manager offers a fixed list of partitions. Each is a set of GPUs
that reach one another over NVLink, and no GPU outside. Only the partition of a guest's GPUs may be active while the
guest runs: it is activated before the guest boots, and deactivated when the guest is gone. Partitions that share a GPU
cannot be active at the same time.

Source: Fabric Manager for NVIDIA NVSwitch Systems User Guide, chapter "Shared NVSwitch Virtualization Model"
(`fmGetSupportedFabricPartitions`, `fmActivateFabricPartition`, `fmDeactivateFabricPartition`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from events.values import PciAddress
from node_agent.host.slices import HostRefused


@dataclass(frozen=True, slots=True)
class GpuPartition:
    """A GPU partition that the fabric manager offers: its number, and the PCI addresses of its GPUs."""

    number: int
    gpus: frozenset[PciAddress]
    active: bool = False


class FabricManager(Protocol):
    """Interface to the NVIDIA fabric manager of a host, which connects GPUs in partitions."""

    def partitions(self) -> tuple[GpuPartition, ...]:
        """Return all partitions that the board supports; empty for a host without such a board. Raises
        `HostUnreadable`.
        """
        ...

    def activate(self, number: int) -> None:
        """Activate a partition. Raises `HostRefused`, also if a GPU of it is in another active partition."""
        ...

    def deactivate(self, number: int) -> None:
        """Deactivate a partition; nothing happens if it is not active. Raises `HostRefused`."""
        ...


class NoFabricManager:
    """Implementation of `FabricManager` for a host without a board of connected GPUs."""

    def partitions(self) -> tuple[GpuPartition, ...]:
        return ()

    def activate(self, number: int) -> None:
        raise HostRefused(f"this host has no fabric manager, so partition {number} cannot be activated")

    def deactivate(self, number: int) -> None:
        raise HostRefused(f"this host has no fabric manager, so partition {number} cannot be deactivated")


def is_partitioned(gpus: Collection[PciAddress], partitions: Iterable[GpuPartition]) -> bool:
    """Return whether any of the given GPUs is on the board of the fabric manager, so that the GPUs need a partition."""
    return any(not each.gpus.isdisjoint(gpus) for each in partitions)


def partition_of(gpus: Collection[PciAddress], partitions: Iterable[GpuPartition]) -> GpuPartition:
    """Return the partition that consists of exactly the given GPUs. Raises `HostRefused` if the board supports none."""
    offered = [*partitions]
    for each in offered:
        if each.gpus == frozenset(gpus):
            return each
    near = [f"{each.number} ({_named(each.gpus)})" for each in offered if not each.gpus.isdisjoint(gpus)]
    raise HostRefused(
        f"no partition of the fabric manager has exactly the GPUs {_named(gpus)}; partitions with some of them:"
        f" {'; '.join(near)}"
    )


def active_with(gpus: Collection[PciAddress], partitions: Iterable[GpuPartition]) -> tuple[GpuPartition, ...]:
    """Return the active partitions that contain any of the given GPUs."""
    return tuple(each for each in partitions if each.active and not each.gpus.isdisjoint(gpus))


def _named(gpus: Iterable[PciAddress]) -> str:
    return ", ".join(sorted(gpus)) or "none"
