"""Who held a thing that has one holder at a time: an address or a PCI function of a slot, or what leads to one from
outside.

The ledger's claims say it, and the projection `holdings` keeps the history of each. A claim's kind and value are all
that is known here, so that a new kind of claim needs a line in `NAMED` and nothing else.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncConnection

from events.claims import Claim
from events.values import InvalidValue, Position, ipv4_address, mac_address, node_id, pci_address
from read_models.holdings import Holding, ending_with, of_claim

Kind = Literal["address", "mapping", "device"]
_VALUE: Final = re.compile(r"[\x21-\x7e]{1,300}")
PROJECTION: Final = "holdings"
MAPPINGS: Final = ("port", "dns", "overlay")
"""Kinds of claims that an ingress mapping takes (LED-3): a public address, protocol and port; a DNS name; an
identity.
"""


def address(raw: str) -> str:
    """A MAC or an IPv4 address as claims write it. Raises `InvalidValue`."""
    return mac_address(raw) if ":" in raw else ipv4_address(raw)


def mapping(raw: str) -> str:
    """The value of a claim that leads to a slot from outside. Raises `InvalidValue`."""
    if not _VALUE.fullmatch(raw):
        raise InvalidValue("ingress mapping", raw[:64], "1 to 300 visible characters")
    return raw


def device(raw: str) -> str:
    """A PCI function of a node, `lab-a/0000:1b:00.0`, as claims write it. Raises `InvalidValue`."""
    node, _, function = raw.partition("/")
    return f"{node_id(node)}/{pci_address(function)}"


async def _address(conn: AsyncConnection, name: str, upto: Position) -> list[Holding]:
    """In whatever layer-2 domain or subnet."""
    return await ending_with(conn, "mac" if ":" in name else "ip", name, upto=upto)


async def _mapping(conn: AsyncConnection, name: str, upto: Position) -> list[Holding]:
    return [held for kind in MAPPINGS for held in await of_claim(conn, Claim(kind, name), upto=upto)]


async def _device(conn: AsyncConnection, name: str, upto: Position) -> list[Holding]:
    return await of_claim(conn, Claim("pci", name), upto=upto)


NAMED: Final[dict[Kind, Callable[[AsyncConnection, str, Position], Awaitable[list[Holding]]]]] = {
    "address": _address,
    "mapping": _mapping,
    "device": _device,
}


def held_at(holdings: Iterable[Holding], position: Position) -> list[Holding]:
    """Of everybody who ever held these claims, those who did at a position."""
    last = {held.claim: held for held in holdings if held.position <= position}
    return [held for held in last.values() if held.stream is not None]
