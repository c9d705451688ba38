"""Simulated fabric manager of a board of connected GPUs."""

from collections.abc import Iterable
from dataclasses import replace

from node_agent.aspects.gpu_partitions import GpuPartition
from node_agent.host.slices import HostRefused
from node_agent.lab.simulated.host import SimulatedHost, State
from node_agent.settings import SimulatedPartition


class SimulatedFabricManager:
    """Simulated implementation of `node_agent.aspects.gpu_partitions.FabricManager`."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def partitions(self) -> tuple[GpuPartition, ...]:
        with self._host.look() as state:
            return tuple(state.partitions)

    def activate(self, number: int) -> None:
        with self._host.change("machine.activate_partition", str(number)) as state:
            wanted = _found(state, number)
            for each in state.partitions:
                if each.active and each.number != number and each.gpus & wanted.gpus:
                    raise HostRefused(
                        f"cannot activate partition {number}: partition {each.number} with the same GPU is active"
                    )
            _set(state, wanted, active=True)

    def deactivate(self, number: int) -> None:
        with self._host.change("machine.deactivate_partition", str(number)) as state:
            _set(state, _found(state, number), active=False)


def add_partitions(host: SimulatedHost, partitions: Iterable[SimulatedPartition]) -> None:
    """Add the partitions of the settings to a simulated host that does not have them yet."""
    with host.change() as state:
        known = {each.number for each in state.partitions}
        state.partitions += [
            GpuPartition(each.number, frozenset(each.gpus)) for each in partitions if each.number not in known
        ]


def _found(state: State, number: int) -> GpuPartition:
    for each in state.partitions:
        if each.number == number:
            return each
    raise HostRefused(f"the fabric manager has no partition {number}")


def _set(state: State, partition: GpuPartition, *, active: bool) -> None:
    others = [each for each in state.partitions if each.number != partition.number]
    state.partitions = sorted([*others, replace(partition, active=active)], key=lambda each: each.number)
