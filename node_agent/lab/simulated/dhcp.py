"""The DHCP server of the simulated host, and the DHCP requests of simulated guests."""

from events.values import Ipv4Address, MacAddress
from node_agent.aspects.gateway import NodeNetwork
from node_agent.aspects.leases import ObservedLease, Reservation
from node_agent.host.slices import HostRefused
from node_agent.host.snapshots import look
from node_agent.lab.simulated.host import SimulatedHost


class SimulatedLeases:
    """DHCP reservations and leases of the simulated host."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def missing(self) -> tuple[str, ...]:
        return ()

    def serves(self, network: NodeNetwork) -> bool:
        with self._host.look() as state:
            return state.dhcp == network

    def serve(self, network: NodeNetwork) -> None:
        with self._host.change("gateway.dhcp") as state:
            if network.bridge not in state.links:
                raise HostRefused(f"cannot serve DHCP: link {network.bridge} does not exist")
            state.dhcp = network

    def foreign_files(self) -> tuple[str, ...]:
        with self._host.look() as state:
            return tuple(state.foreign_files)

    def remove_foreign_files(self) -> None:
        with self._host.change("gateway.dhcp") as state:
            state.foreign_files = []

    def foreign_servers(self, network: NodeNetwork) -> tuple[str, ...]:
        with self._host.look() as state:
            return tuple(state.foreign_servers)

    def reservations(self) -> frozenset[Reservation]:
        def read() -> frozenset[Reservation]:
            with self._host.look() as state:
                return frozenset(state.reservations)

        return look((self, "reservations"), read)

    def leases(self) -> frozenset[ObservedLease]:
        def read() -> frozenset[ObservedLease]:
            with self._host.look() as state:
                return frozenset(state.leases)

        return look((self, "leases"), read)

    def reserve(self, reservation: Reservation) -> None:
        with self._host.change("lease.reserve", reservation.name) as state:
            held = {value for r in state.reservations for value in (r.name, r.mac, r.ip)}
            if held & {reservation.name, reservation.mac, reservation.ip}:
                raise HostRefused(
                    f"cannot reserve {reservation.ip} for {reservation.mac} as {reservation.name}: the name, MAC or address "
                    "is reserved already; withdraw the existing reservation first"
                )
            state.reservations.append(reservation)

    def withdraw(self, reservation: Reservation) -> None:
        with self._host.change("lease.withdraw", reservation.name) as state:
            state.reservations = [each for each in state.reservations if each.name != reservation.name]

    def clear(self, lease: ObservedLease) -> None:
        with self._host.change("lease.clear", lease.mac) as state:
            state.leases = [each for each in state.leases if (each.mac, each.ip) != (lease.mac, lease.ip)]


def ask_for_lease(host: SimulatedHost, mac: MacAddress) -> Ipv4Address | None:
    """Request a DHCP lease for a simulated guest; return the reserved address, or None if the guest gets no answer.

    As on a real host, a request is answered only if DHCP is served and the packet filter has a rule of the slot.
    """
    with host.change() as state:
        reserved = next((r for r in state.reservations if r.mac == mac), None)
        is_accepted = reserved and reserved.name in {found.rule.owner for found in state.nat}
        if reserved is None or not is_accepted or state.dhcp is None:
            return None
        others = [lease for lease in state.leases if lease.mac != mac]
        state.leases = [*others, ObservedLease(mac, reserved.ip, expired=False)]
        return reserved.ip
