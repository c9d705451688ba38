"""The lease aspect: one DHCP reservation per slot, and the observation of the DHCP leases that the server granted.

A reservation is desired state and comes only from the control plane; the lease file shows the observed state (NOD-4). A
DHCP lease never frees or moves an address: it is compared, reported, and cleared when its slot is released.

Reservations are withdrawn before leases are cleared: as long as a reservation exists, a guest could lease the address
again. Both come before a new reservation, because an address may be reserved only once. A crash in between leaves a
lease without a reservation, which the next plan clears.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, assert_never

from events.values import Ipv4Address, MacAddress
from node_agent.host.slices import Difference, Slice, SliceNetwork, Step
from node_agent.host.snapshots import look
from tasks.drift import DriftKind

Thing = TypeVar("Thing")
LeaseState = Literal["none", "offered", "bound", "expired", "foreign"]


@dataclass(frozen=True, slots=True)
class Reservation:
    """A DHCP reservation. Its `name` is the slot's tap, and the key of the reservation on the host.

    `spoilt` describes how its file differs from the form that this program writes, and is empty for a valid file. The
    DHCP server may interpret a spoilt file differently, or ignore it.
    """

    name: str
    mac: MacAddress
    ip: Ipv4Address
    spoilt: str = ""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A DHCP lease in the server's lease file. `expired` is determined by the server's own clock."""

    mac: MacAddress
    ip: Ipv4Address
    expired: bool


@dataclass(frozen=True, slots=True)
class ObservedAddress:
    """Observed address and DHCP lease state of a slice, as in reports (NOD-5).

    `actual_ip` is None without a valid DHCP lease.
    """

    actual_ip: Ipv4Address | None
    lease_state: LeaseState


class Leases(Protocol):
    """Interface to the reservations and leases of the DHCP server.

    Reads raise `HostUnreadable`. Changes raise `HostRefused` if the server refuses them, and `HostUnreadable` if it
    does not answer: the change may have been made in that case.
    """

    def reservations(self) -> frozenset[Reservation]: ...

    def leases(self) -> frozenset[ObservedLease]: ...

    def reserve(self, reservation: Reservation) -> None:
        """Add a DHCP reservation. Raises `HostRefused` if another reservation has the same name, MAC or address."""
        ...

    def withdraw(self, reservation: Reservation) -> None:
        """Remove a DHCP reservation; do nothing if it does not exist."""
        ...

    def clear(self, lease: ObservedLease) -> None:
        """Delete a lease from the DHCP server; return when the lease file does not contain the lease any more."""
        ...


def plan(
    desired: Reservation, reserved: frozenset[Reservation], leased: frozenset[ObservedLease], leases: Leases
) -> tuple[Step, ...]:
    """Return the steps that create the DHCP reservation `desired` and remove conflicting reservations and leases.

    `reserved` and `leased` are the observed reservations and leases with the same name, MAC or address.
    """
    conflicting, foreign = _by_name(reserved - {desired}), _foreign(desired, leased)
    steps = (
        *(
            _withdraw(each, leases, _differs(_kind_of(each, desired), desired, _reservation_words(each)))
            for each in conflicting
        ),
        *(_clear(each, leases, _differs("lease.foreign", desired, _lease_words(each))) for each in foreign),
    )
    if desired not in reserved:
        differs = _differs("lease.unreserved", desired, "no such reservation")
        steps += (Step("lease.reserve", lambda: leases.reserve(desired), differs),)
    return steps


def _kind_of(found: Reservation, desired: Reservation) -> DriftKind:
    return "lease.unreserved" if found.spoilt and found.name == desired.name else "lease.conflicting"


def _differs(kind: DriftKind, desired: Reservation, found: str) -> Difference:
    return Difference(kind, _reservation_words(desired), found)


def observe(mac: MacAddress, ip: Ipv4Address, leased: frozenset[ObservedLease]) -> ObservedAddress:
    """Return the DHCP lease state of the slice with this MAC and reserved address."""
    own = sorted((lease for lease in leased if lease.mac == mac), key=lambda lease: lease.expired)
    if not own:
        is_taken = any(lease.ip == ip and not lease.expired for lease in leased)
        return ObservedAddress(None, "foreign" if is_taken else "none")
    if own[0].expired:
        return ObservedAddress(None, "expired")
    return ObservedAddress(own[0].ip, "bound" if own[0].ip == ip else "foreign")


def _by_name(reserved: Iterable[Reservation]) -> tuple[Reservation, ...]:
    return tuple(sorted(reserved, key=lambda reservation: reservation.name))


def _foreign(desired: Reservation, leased: Iterable[ObservedLease]) -> tuple[ObservedLease, ...]:
    """Return the DHCP leases that conflict with the reservation `desired`.

    Such a lease has the reservation's MAC with another address, or its address with another MAC.
    """
    return _sorted(lease for lease in leased if (lease.mac == desired.mac) != (lease.ip == desired.ip))


def _sorted(leases: Iterable[ObservedLease]) -> tuple[ObservedLease, ...]:
    return tuple(sorted(leases, key=lambda lease: (lease.ip, lease.mac)))


def _withdraw(reservation: Reservation, leases: Leases, differs: Difference | None = None) -> Step:
    return Step("lease.withdraw", lambda: leases.withdraw(reservation), differs)


def _clear(lease: ObservedLease, leases: Leases, differs: Difference | None = None) -> Step:
    return Step("lease.clear", lambda: leases.clear(lease), differs)


def _reservation_words(reservation: Reservation) -> str:
    spoilt = f", {reservation.spoilt}" if reservation.spoilt else ""
    return f"dhcp reservation {reservation.name} of {reservation.ip} for {reservation.mac}{spoilt}"


def _lease_words(lease: ObservedLease) -> str:
    return f"dhcp lease of {lease.ip} to {lease.mac}"


class LeaseAspect:
    """Aspect `lease` of all slots: compares the desired DHCP reservations with the reservations and leases of the DHCP
    server.
    """

    name = "lease"

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def to_apply(self, desired: Slice) -> tuple[Step, ...]:
        match desired.network_mode:
            case "private-nat" | "public-nat":
                return self._to_keep(desired.network)
            case mode:
                assert_never(mode)

    def to_stop(self, stopped: SliceNetwork) -> tuple[Step, ...]:
        return self._to_keep(stopped)

    def still_on(self, _stopped: SliceNetwork) -> tuple[str, ...]:
        return ()

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        reserved, leased = self._found(gone)
        return (
            *(_withdraw(each, self._leases) for each in _by_name(reserved)),
            *(_clear(each, self._leases) for each in _sorted(leased)),
        )

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        reserved, leased = self._found(gone)
        return (
            *map(_reservation_words, _by_name(reserved)),
            *map(_lease_words, _sorted(leased)),
        )

    def observe_address(self, network: SliceNetwork) -> ObservedAddress:
        """Return the observed address and DHCP lease state of a slice (NOD-5). Raises `HostUnreadable`."""
        return observe(network.mac, network.ip, self._leased(network))

    def _to_keep(self, network: SliceNetwork) -> tuple[Step, ...]:
        return plan(_desired(network), *self._found(network), self._leases)

    def _found(self, network: SliceNetwork) -> tuple[frozenset[Reservation], frozenset[ObservedLease]]:
        """Return the DHCP server's reservations and leases that have the slot's name, MAC or address."""
        by_key = look(
            (self._leases, "reservations by key"), lambda: _by_key(self._leases.reservations(), _keys)
        )
        return _with_any_key(by_key, _keys(_desired(network))), self._leased(network)

    def _leased(self, network: SliceNetwork) -> frozenset[ObservedLease]:
        by_key = look(
            (self._leases, "leases by key"),
            lambda: _by_key(self._leases.leases(), lambda lease: (lease.mac, lease.ip)),
        )
        return _with_any_key(by_key, (network.mac, network.ip))


def _keys(reservation: Reservation) -> tuple[str, ...]:
    return reservation.name, reservation.mac, reservation.ip


def _by_key(things: Iterable[Thing], keys: Callable[[Thing], Iterable[str]]) -> dict[str, list[Thing]]:
    """Index reservations or leases by each of their keys (name, MAC, address), so that those of one slot are found
    quickly.
    """
    found: dict[str, list[Thing]] = {}
    for thing in things:
        for key in keys(thing):
            found.setdefault(key, []).append(thing)
    return found


def _with_any_key(by_key: Mapping[str, Sequence[Thing]], keys: Iterable[str]) -> frozenset[Thing]:
    return frozenset(thing for key in keys for thing in by_key.get(key, ()))


def _desired(network: SliceNetwork) -> Reservation:
    return Reservation(network.tap, network.mac, network.ip)
