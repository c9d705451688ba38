"""The lease aspect: one reservation of the DHCP server per slot, and the evidence of what it leased.

A reservation is intent and comes from the control plane alone; the lease file is evidence (NOD-4). A lease never
frees or moves an address: it is compared, reported, and cleared away when its slot is taken back.

Withdrawing comes before clearing: as long as the reservation stands, a guest could lease again what was just
cleared. Both come before reserving anew, because an address may be reserved only once. A crash in between leaves a
withdrawn reservation with a lease, which the next plan clears.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from events.values import Ipv4Address, MacAddress
from node_agent.looks import look
from node_agent.slices import Difference, Slice, SliceNetwork, Step
from tasks.drift import DriftKind

Thing = TypeVar("Thing")
LeaseState = Literal["none", "offered", "bound", "expired", "foreign"]


@dataclass(frozen=True, slots=True)
class Reservation:
    """`name` is the slot's tap, the key of the reservation on the host.

    `spoilt` describes how the file differs from what this program writes; empty for a valid one. The DHCP server may
    interpret a spoilt one differently, or ignore it.
    """

    name: str
    mac: MacAddress
    ip: Ipv4Address
    spoilt: str = ""


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A lease that the server says it gave. `expired` is by the server's own clock."""

    mac: MacAddress
    ip: Ipv4Address
    expired: bool


@dataclass(frozen=True, slots=True)
class ObservedAddress:
    """What a report says of a slice's address (NOD-5)."""

    actual_ip: Ipv4Address | None
    lease_state: LeaseState


class Leases(Protocol):
    """The DHCP server's memory. Reads raise `HostUnreadable`. Changes raise `HostRefused` when the answer was no, and
    `HostUnreadable` when there was none: the change may then have been made.
    """

    def reservations(self) -> frozenset[Reservation]: ...

    def leases(self) -> frozenset[LeaseSeen]: ...

    def reserve(self, reservation: Reservation) -> None:
        """Serve `ip` to `mac`; refused when another reservation holds the name, the MAC or the address."""
        ...

    def withdraw(self, reservation: Reservation) -> None:
        """Serve it no more; none there counts as done."""
        ...

    def clear(self, lease: LeaseSeen) -> None:
        """Make the server forget a lease; returns when its lease file shows it gone."""
        ...


def plan(
    wanted: Reservation, reserved: frozenset[Reservation], leased: frozenset[LeaseSeen], leases: Leases
) -> tuple[Step, ...]:
    """From what the server keeps that is the slot's, or in its way, to `wanted`."""
    rivals, foreign = _by_name(reserved - {wanted}), _foreign(wanted, leased)
    steps = (
        *(
            _withdraw(each, leases, _differs(_kind_of(each, wanted), wanted, _reservation_words(each)))
            for each in rivals
        ),
        *(_clear(each, leases, _differs("lease.foreign", wanted, _lease_words(each))) for each in foreign),
    )
    if wanted not in reserved:
        differs = _differs("lease.unreserved", wanted, "no such reservation")
        steps += (Step("lease.reserve", lambda: leases.reserve(wanted), differs),)
    return steps


def _kind_of(rival: Reservation, wanted: Reservation) -> DriftKind:
    return "lease.unreserved" if rival.spoilt and rival.name == wanted.name else "lease.rival"


def _differs(kind: DriftKind, wanted: Reservation, found: str) -> Difference:
    return Difference(kind, _reservation_words(wanted), found)


def observe(mac: MacAddress, ip: Ipv4Address, leased: frozenset[LeaseSeen]) -> ObservedAddress:
    """What the evidence says of the slice that should have `ip`: its own lease, or a stranger's on its address."""
    own = sorted((lease for lease in leased if lease.mac == mac), key=lambda lease: lease.expired)
    if not own:
        taken = any(lease.ip == ip and not lease.expired for lease in leased)
        return ObservedAddress(None, "foreign" if taken else "none")
    if own[0].expired:
        return ObservedAddress(None, "expired")
    return ObservedAddress(own[0].ip, "bound" if own[0].ip == ip else "foreign")


def _by_name(reserved: Iterable[Reservation]) -> tuple[Reservation, ...]:
    return tuple(sorted(reserved, key=lambda reservation: reservation.name))


def _foreign(wanted: Reservation, leased: Iterable[LeaseSeen]) -> tuple[LeaseSeen, ...]:
    """Leases that tie the wanted card to another address, or another card to the wanted address."""
    return _sorted(lease for lease in leased if (lease.mac == wanted.mac) != (lease.ip == wanted.ip))


def _sorted(leases: Iterable[LeaseSeen]) -> tuple[LeaseSeen, ...]:
    return tuple(sorted(leases, key=lambda lease: (lease.ip, lease.mac)))


def _withdraw(reservation: Reservation, leases: Leases, differs: Difference | None = None) -> Step:
    return Step("lease.withdraw", lambda: leases.withdraw(reservation), differs)


def _clear(lease: LeaseSeen, leases: Leases, differs: Difference | None = None) -> Step:
    return Step("lease.clear", lambda: leases.clear(lease), differs)


def _reservation_words(reservation: Reservation) -> str:
    spoilt = f", {reservation.spoilt}" if reservation.spoilt else ""
    return f"dhcp reservation {reservation.name} of {reservation.ip} for {reservation.mac}{spoilt}"


def _lease_words(lease: LeaseSeen) -> str:
    return f"dhcp lease of {lease.ip} to {lease.mac}"


class LeaseAspect:
    name = "lease"

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        return self._to_keep(wanted.network)

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
        """What the server's evidence says of this slice's address now (NOD-5). Raises `HostUnreadable`."""
        return observe(network.mac, network.ip, self._leased(network))

    def _to_keep(self, network: SliceNetwork) -> tuple[Step, ...]:
        return plan(_wanted(network), *self._found(network), self._leases)

    def _found(self, network: SliceNetwork) -> tuple[frozenset[Reservation], frozenset[LeaseSeen]]:
        """What the server keeps that is the slot's, or in its way: of the same name, card or address."""
        by_key = look(
            (self._leases, "reservations by key"), lambda: _by_key(self._leases.reservations(), _keys)
        )
        return _of(by_key, _keys(_wanted(network))), self._leased(network)

    def _leased(self, network: SliceNetwork) -> frozenset[LeaseSeen]:
        by_key = look(
            (self._leases, "leases by key"),
            lambda: _by_key(self._leases.leases(), lambda lease: (lease.mac, lease.ip)),
        )
        return _of(by_key, (network.mac, network.ip))


def _keys(reservation: Reservation) -> tuple[str, ...]:
    return reservation.name, reservation.mac, reservation.ip


def _by_key(things: Iterable[Thing], keys: Callable[[Thing], Iterable[str]]) -> dict[str, list[Thing]]:
    """A host has many slots, and each asks for its own."""
    found: dict[str, list[Thing]] = {}
    for thing in things:
        for key in keys(thing):
            found.setdefault(key, []).append(thing)
    return found


def _of(by_key: Mapping[str, Sequence[Thing]], keys: Iterable[str]) -> frozenset[Thing]:
    return frozenset(thing for key in keys for thing in by_key.get(key, ()))


def _wanted(network: SliceNetwork) -> Reservation:
    return Reservation(network.tap, network.mac, network.ip)
