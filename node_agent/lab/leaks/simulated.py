"""Objects on a simulated host, read from its state file."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from node_agent.lab.leaks.target import SimulatedTarget, TargetUnreadable


class SimulatedState(msgspec.Struct, frozen=True):
    """The parts of a simulated host's state file that contain objects of slices. Each object is arbitrary JSON."""

    ports: list[msgspec.Raw]
    flows: list[msgspec.Raw]
    meters: list[msgspec.Raw]
    reservations: list[msgspec.Raw]
    leases: list[msgspec.Raw]
    nat: list[msgspec.Raw]
    taps: list[msgspec.Raw]
    domains: list[msgspec.Raw]
    disks: list[msgspec.Raw]
    root_disks: list[msgspec.Raw]
    connections: list[msgspec.Raw]
    partitions: list[msgspec.Raw]


def objects(target: SimulatedTarget, kind: str) -> Iterator[str]:
    """Yield the objects of one kind on a simulated host. Raises `TargetUnreadable`."""
    try:
        state = msgspec.json.decode(Path(target.state).read_bytes(), type=SimulatedState)
    except (OSError, msgspec.DecodeError) as error:
        raise TargetUnreadable(f"cannot read {target.state}: {error}") from error
    found: list[msgspec.Raw] = getattr(state, kind)
    for item in found:
        value = msgspec.json.decode(item)
        yield value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
