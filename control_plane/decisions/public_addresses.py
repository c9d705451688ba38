"""Which public address and port a way in may have, of those that its node has (ING-2, ING-3).

An address is given out as a whole or port by port, as an admin said of it, so that a claim of the whole can never meet
a claim of one of its ports. What is free is for the ledger's claims to say.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import Final, assert_never

from control_plane.decisions.refusals import Conflict, Malformed, Objection
from events.ingress import IngressMapping, Service
from events.nodes import NodeAddressesChanged, PublicAddress
from events.values import Ipv4Address, Ipv4Subnet, NodeId

FIRST_PORT: Final = 20000
LAST_PORT: Final = 29999
"""Of what is given port by port unless an admin says otherwise: below the ports that hosts use by themselves."""
_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")


@dataclass(frozen=True, slots=True)
class PortWish:
    """One port, any that is free where `public_port` is None."""

    protocol: str
    port: int
    public_port: int | None


@dataclass(frozen=True, slots=True)
class AddressWish:
    """A whole address."""


@dataclass(frozen=True, slots=True)
class WayWish:
    """What somebody asks for: a way in to the slice in the allocation's `slot`-th slot, for these sources."""

    slot: int
    to: PortWish | AddressWish
    sources: tuple[Ipv4Subnet, ...]


def normal(sources: Iterable[Ipv4Subnet]) -> tuple[Ipv4Subnet, ...]:
    """The same sources in the fewest networks, in order."""
    return tuple(Ipv4Subnet(str(each)) for each in collapse_addresses(map(IPv4Network, sources)))


def candidates(wish: WayWish, addresses: Sequence[PublicAddress], start: int) -> Iterator[IngressMapping]:
    """Everything that would do, each once, the ports from the `start`-th on."""
    match wish.to:
        case AddressWish():
            for each in addresses:
                if each.use == "whole":
                    yield IngressMapping(each.address, None, wish.sources)
        case PortWish() as to:
            for each in addresses:
                if each.use == "ports":
                    for port in _ports(to, each, start):
                        yield IngressMapping(each.address, Service(to.protocol, port, to.port), wish.sources)
        case _:
            assert_never(wish.to)


def _ports(to: PortWish, address: PublicAddress, start: int) -> Iterator[int]:
    span = range(address.first_port, address.last_port + 1)
    if to.public_port is None:
        yield from (span[(start + number) % len(span)] for number in range(len(span)))
    elif to.public_port in span:
        yield to.public_port


def none_is_free(wish: WayWish, node: NodeId) -> Conflict:
    """That the node has nothing that would do."""
    match wish.to:
        case AddressWish():
            what = "public address to give as a whole"
        case PortWish(public_port=None):
            what = "public port"
        case PortWish(protocol=protocol, public_port=port):
            what = f"public address with {protocol} port {port}"
        case _:
            assert_never(wish.to)
    return Conflict(Objection("no_public_address", f"node {node} has no free {what}", "/ingress"))


def nowhere_free() -> Conflict:
    """That no node with room has what would do."""
    why = "no node with free slots has the public addresses or ports free that are asked for"
    return Conflict(Objection("no_public_address", why, "/ingress"))


def of_a_host(raw: str) -> str:
    """The address, if a host can be reached by it. Raises `Malformed`."""
    address = IPv4Address(raw)
    local = address in _THIS_NETWORK or address.is_loopback or address.is_link_local
    # The last /4 is reserved, and the broadcast address the last of it.
    if local or address.is_multicast or address.is_reserved:
        raise Malformed(Objection("no_host_address", f"no host is reached from outside by {raw}"))
    return raw


def check_apart(wanted: Iterable[PublicAddress], slice_networks: IPv4Network) -> None:
    """Raises `Conflict` for addresses of slices and their gateways: what comes to them would be led astray."""
    inside = [each.address for each in wanted if IPv4Address(each.address) in slice_networks]
    if inside:
        why = f"{', '.join(inside)}: the slices have all of {slice_networks}"
        raise Conflict(Objection("address_of_slices", why, "/addresses"))


def change(
    node: NodeId, known: Sequence[PublicAddress], wanted: Sequence[PublicAddress], used: Iterable[Ipv4Address]
) -> tuple[NodeAddressesChanged, ...]:
    """From the addresses that a node has to those that it is to have; nothing where they are the same.

    Raises `Conflict` for one that is `used` and would go, or be given out otherwise.
    """
    ordered = tuple(sorted(wanted, key=lambda each: IPv4Address(each.address)))
    if ordered == tuple(known):
        return ()
    kept = {each.address: each for each in ordered}
    lost = [
        each for each in known if each.address in set(used) and not _still_fits(each, kept.get(each.address))
    ]
    if lost:
        raise Conflict(
            *(
                Objection("address_in_use", f"ways in by {each.address} are still claimed", "/addresses")
                for each in lost
            )
        )
    before = {each.address for each in known}
    return (
        NodeAddressesChanged(
            node,
            ordered,
            added=tuple(each.address for each in ordered if each.address not in before),
            withdrawn=tuple(each.address for each in known if each.address not in kept),
        ),
    )


def _still_fits(known: PublicAddress, wanted: PublicAddress | None) -> bool:
    if wanted is None or wanted.use != known.use:
        return False
    return known.use == "whole" or (
        wanted.first_port <= known.first_port and wanted.last_port >= known.last_port
    )
