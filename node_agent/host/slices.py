"""Slices as a host implements them, and the interface of the aspects that inspect, repair and remove them.

A host carries a slice in five aspects, created in this order and removed in reverse order, so that nothing is reachable
before it is guarded: link (tap or representor), lease (DHCP reservation), port (OVS port, its meters and flows),
translation (NAT and the gateway's filter), machine (domain and disks). Each aspect compares the desired state with the
observed state, read again from the host, and returns a plan; running its steps executes it. After a crash between two
steps, the same comparison continues from the host's state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from events.values import AllocationId, IngressId, Ipv4Address, Ipv4Subnet, MacAddress, NetworkMode, SlotIndex
from tasks.drift import DriftKind
from tasks.orders import Machine, Mapping, network_mode_of
from tasks.workflows import StepName


@dataclass(frozen=True, slots=True)
class SliceNetwork:
    """Network of one slice, as the network aspects need it. `tap` is `slice<index>`; a node has one bridge and gateway.

    `rate_mbit` limits each direction, in Mbit/s; None if it is unlimited, or if the slice must not run.
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
    """Desired state of one slice on this host."""

    allocation_id: AllocationId
    network: SliceNetwork
    machine: Machine
    ingress: tuple[Mapping, ...] = ()
    ingress_changed: bool = False
    """Whether the ingress rules were changed and the host may still have removed rules, or tracked connections that
    such rules permitted.
    """

    @property
    def network_mode(self) -> NetworkMode:
        """Network mode of the slice, such as `private-nat`. Stopping and removing a slice do not depend on the mode."""
        return network_mode_of(self.ingress)


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between desired and observed state, described for people: the evidence of a drift."""

    kind: DriftKind
    desired: str
    observed: str
    ingress_id: IngressId | None = None
    """Id of the ingress that the difference concerns; None if it concerns no ingress."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the host. `name` is static (`port.add`): failpoints, log lines and progress use it.

    `repairs` is the drift that the step repairs, which several steps can share; None for steps that remove a slice.
    """

    name: StepName
    run: Callable[[], None]
    repairs: Difference | None = None


class Aspect(Protocol):
    """One of the five aspects of a slice. Reads raise `HostUnreadable`, changes also `HostRefused`.

    Both errors name the request to the host that failed.
    """

    @property
    def name(self) -> str: ...

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        """Return the steps that change this aspect of the host to the desired slice; empty if nothing differs."""
        ...

    def to_stop(self, stopped: SliceNetwork) -> tuple[Step, ...]:
        """Return the steps that stop the slice in this aspect; empty if it is stopped.

        Afterwards nothing of the slice runs or is reachable, and the objects that it needs for a restart remain.
        """
        ...

    def still_on(self, stopped: SliceNetwork) -> tuple[str, ...]:
        """Read the host again, and describe which parts of the stopped slice still run or are reachable."""
        ...

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        """Return the steps that remove all objects of the slot in this aspect; empty if there are none."""
        ...

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        """Read the host again, and describe the objects of the slot that exist (`ovs port slice0 on br-slice`)."""
        ...


class HostUnreadable(Exception):
    """The host did not answer, so its state is unknown, and nothing is repaired: a repair needs a complete snapshot.

    A change without an answer may have been made, or may still be made; reading the host again shows the result.
    """


class HostRefused(Exception):
    """The host refused a change that a step of a plan made, such as a new link, rule or domain."""


class ImageUnusable(HostRefused):
    """A disk image cannot be used, on this host or any other: the image store does not have it, or it differs from its
    entry in the catalogue.
    """


def tap_of(index: SlotIndex) -> str:
    """Return the name of a slot's tap, which is also the name of the slot's libvirt domain."""
    return f"slice{index}"
