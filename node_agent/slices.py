"""A slice in the words of the host, and what every aspect of a host can say and do about one.

A host carries a slice in five aspects, made in this order and taken away in the opposite one, so that nothing
is reachable before it is guarded: link (tap or representor), lease (DHCP reservation), port (OVS port, its meters
and flows), translation (NAT and the gateway's filter), machine (domain and disks). Each aspect compares wanted with
found, read afresh from the host, and plans; carrying a plan out is running its steps. A crash between two steps
leaves a host from which the same comparison goes on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from events.values import AllocationId, IngressId, Ipv4Address, Ipv4Subnet, MacAddress, SlotIndex
from tasks.drift import DriftKind
from tasks.orders import Machine, Mapping
from tasks.workflows import StepName


@dataclass(frozen=True, slots=True)
class SliceNetwork:
    """Everything the network aspects need. `tap` is `slice<index>`; one bridge and one gateway per node.

    `rate_mbit` limits each direction, in Mbit/s; None: unlimited, or a slice that is not to run.
    """

    index: SlotIndex
    tap: str
    bridge: str
    mac: MacAddress
    ip: Ipv4Address
    subnet: Ipv4Subnet
    gateway: Ipv4Address
    rate_mbit: int | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice as it is wanted on this host."""

    allocation_id: AllocationId
    network: SliceNetwork
    machine: Machine
    ingress: tuple[Mapping, ...] = ()
    ways_changed: bool = False
    """It is not proved yet that no other than these ways in leads to it, nor any connection by another."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What is otherwise on the host than it is wanted, in words for people: the evidence of a drift."""

    kind: DriftKind
    wanted: str
    found: str
    ingress_id: IngressId | None = None
    """Of what is about one way in from outside."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the host. `name` is static (`port.add`): it is the failpoint's and the log event's name.

    Steps of one repair bear the same difference; taking a slice away mends nothing.
    """

    name: StepName
    run: Callable[[], None]
    mends: Difference | None = None


class Aspect(Protocol):
    """One of the five. Reads raise `HostUnreadable`, changes that and `HostRefused`; both say what was asked."""

    @property
    def name(self) -> str: ...

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        """Steps that make the host carry `wanted`; empty when it does. Touches only what differs."""
        ...

    def to_stop(self, stopped: SliceNetwork) -> tuple[Step, ...]:
        """Steps after which nothing of the slice runs or can be reached, and what it is to find again is there; empty
        when that is so."""
        ...

    def still_on(self, stopped: SliceNetwork) -> tuple[str, ...]:
        """What a fresh look at the host still finds that runs or can be reached, in words."""
        ...

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        """Steps that take everything of the slot away; empty when there is nothing."""
        ...

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        """What a fresh look at the host still finds of the slot, in words (`ovs port slice0 on br-slice`)."""
        ...


class HostUnreadable(Exception):
    """The host gave no answer, so nothing may be decided on it: a repair acts only on a complete snapshot.

    A change that got none may have been made, or may yet be: a fresh look tells.
    """


class HostRefused(Exception):
    """The host was told to change, and its answer was no."""


def tap_of(index: SlotIndex) -> str:
    return f"slice{index}"
