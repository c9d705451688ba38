"""Choice of the public address and port of an ingress rule, among those of its node (ING-2, ING-3).

An address is assigned as a whole or port by port, as an admin configured it, so that a claim of the whole address can
never collide with a claim of one of its ports. The claims in the ledger decide which addresses and ports are free.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import Final, assert_never

from control_plane.decisions.refusals import Conflict, Malformed, Objection
from events.ingress import IngressRule, Service
from events.nodes import NodeAddressesChanged, PublicAddress
from events.values import Ipv4Address, Ipv4Subnet, NodeId

FIRST_PORT: Final = 20000
LAST_PORT: Final = 29999
"""`FIRST_PORT` to `LAST_PORT` is the default port range of a public address that is assigned port by port. The range
is below the ephemeral ports of hosts.
"""
_THIS_NETWORK: Final = IPv4Network("0.0.0.0/8")


@dataclass(frozen=True, slots=True)
class PortRequest:
    """Request for one public port: the port `public_port`, or any free port if it is None."""

    protocol: str
    port: int
    public_port: int | None


@dataclass(frozen=True, slots=True)
class AddressRequest:
    """Request for a whole public address."""


@dataclass(frozen=True, slots=True)
class IngressRequest:
    """Request for an ingress rule that admits the networks `sources` to the slice in slot number `slot` of an
    allocation.
    """

    slot: int
    to: PortRequest | AddressRequest
    sources: tuple[Ipv4Subnet, ...]


def normalized_sources(sources: Iterable[Ipv4Subnet]) -> tuple[Ipv4Subnet, ...]:
    """Return the source networks in canonical form: merged into as few networks as possible, in order."""
    return tuple(Ipv4Subnet(str(each)) for each in collapse_addresses(map(IPv4Network, sources)))


def candidates(
    request: IngressRequest, addresses: Sequence[PublicAddress], start: int
) -> Iterator[IngressRule]:
    """Yield every ingress rule that satisfies a request, once each. The ports of an address begin at offset `start` of
    its port range and continue at the beginning of the range.
    """
    match request.to:
        case AddressRequest():
            for each in addresses:
                if each.use == "whole":
                    yield IngressRule(each.address, None, request.sources)
        case PortRequest() as to:
            for each in addresses:
                if each.use == "ports":
                    for port in _ports(to, each, start):
                        yield IngressRule(each.address, Service(to.protocol, port, to.port), request.sources)
        case _:
            assert_never(request.to)


def _ports(to: PortRequest, address: PublicAddress, start: int) -> Iterator[int]:
    span = range(address.first_port, address.last_port + 1)
    if to.public_port is None:
        yield from (span[(start + number) % len(span)] for number in range(len(span)))
    elif to.public_port in span:
        yield to.public_port


def no_free_address_on_node(request: IngressRequest, node: NodeId) -> Conflict:
    """Return the refusal of a request for an ingress rule on a node without a suitable free public address or port."""
    match request.to:
        case AddressRequest():
            reason = f"node {node} has no free public address that can be assigned as a whole"
        case PortRequest(public_port=None):
            reason = f"node {node} has no free public port"
        case PortRequest(protocol=protocol, public_port=port):
            reason = f"node {node} has no public address with free {protocol} port {port}"
        case _:
            assert_never(request.to)
    return Conflict(Objection("no_public_address", reason, "/ingress"))


def no_free_address_anywhere() -> Objection:
    """Return the objection to a request for which no node with enough free slots has the public addresses or ports
    free.
    """
    reason = "no node with enough free slots has the requested public addresses or ports free"
    return Objection("no_public_address", reason, "/ingress")


def host_address(raw: str) -> str:
    """Return the address if it can be the public address of a host. Raises `Malformed` if it cannot."""
    address = IPv4Address(raw)
    local = address in _THIS_NETWORK or address.is_loopback or address.is_link_local
    # The last /4 is reserved; it includes the broadcast address.
    if local or address.is_multicast or address.is_reserved:
        raise Malformed(
            Objection(
                "no_host_address",
                f"{raw} cannot be the public address of a host; use a routable unicast address",
            )
        )
    return raw


def refuse_slice_addresses(wanted: Iterable[PublicAddress], slice_networks: IPv4Network) -> None:
    """Raise `Conflict` if a public address is in the networks of the slices, where its traffic would be misrouted."""
    inside = [each.address for each in wanted if IPv4Address(each.address) in slice_networks]
    if inside:
        found = f"public addresses {', '.join(inside)} are inside {slice_networks}"
        reason = f"{found}, which is reserved for the networks of slices; choose others"
        raise Conflict(Objection("address_of_slices", reason, "/addresses"))


def change(
    node: NodeId, known: Sequence[PublicAddress], wanted: Sequence[PublicAddress], used: Iterable[Ipv4Address]
) -> tuple[NodeAddressesChanged, ...]:
    """Replace the public addresses `known` of a node by `wanted`; return no facts if they are equal.

    Raises `Conflict` if an address in `used` would be removed or assigned in another way.
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
                Objection(
                    "address_in_use",
                    f"address {each.address} is used by ingress rules; remove these rules before you change the address",
                    "/addresses",
                )
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
