"""Holders of things that have one holder at a time: an address or PCI function of a slot, or the claim of an ingress
rule.

The ledger's claims define the holder, and the projection `holdings` keeps the history of each claim. This module uses
only a claim's kind and value, so a new kind of claim needs only a line in `NAMED`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncConnection

from events.claims import Claim
from events.values import InvalidValue, Position, ipv4_address, mac_address, node_id, pci_address
from read_models.holdings import Holding, holders_by_suffix, holders_of_claim

Kind = Literal["address", "ingress", "device"]
_VALUE: Final = re.compile(r"[\x21-\x7e]{1,300}")
PROJECTION: Final = "holdings"
MAPPINGS: Final = ("port", "dns", "overlay")
"""Kinds of claims that an ingress rule holds (LED-3): a public address, protocol and port; a DNS name; an
identity.
"""


def address(raw: str) -> str:
    """Normalise a MAC or IPv4 address to the form used in claims. Raises `InvalidValue`."""
    return mac_address(raw) if ":" in raw else ipv4_address(raw)


def mapping(raw: str) -> str:
    """Return the value of a claim that an ingress rule holds, after checking its length and characters. Raises
    `InvalidValue`.
    """
    if not _VALUE.fullmatch(raw):
        raise InvalidValue(
            "claim of an ingress rule", raw[:64], "use 1 to 300 printable ASCII characters without spaces"
        )
    return raw


def device(raw: str) -> str:
    """Normalise a PCI function of a node, such as `lab-a/0000:1b:00.0`, as used in claims. Raises `InvalidValue`."""
    node, _, function = raw.partition("/")
    return f"{node_id(node)}/{pci_address(function)}"


async def _address(conn: AsyncConnection, name: str, upto: Position) -> list[Holding]:
    """Return the past and present holders of an address: the slots that had it, in any layer-2 domain or subnet; of a
    public address, the nodes that had it, and the allocations that had it as a whole.
    """
    if ":" in name:
        return await holders_by_suffix(conn, "mac", name, upto=upto)
    own = await holders_by_suffix(conn, "ip", name, upto=upto)
    public = [await holders_of_claim(conn, Claim(kind, name), upto=upto) for kind in ("public", "port")]
    return sorted([*own, *(each for found in public for each in found)], key=lambda each: each.position)


async def _mapping(conn: AsyncConnection, name: str, upto: Position) -> list[Holding]:
    return [held for kind in MAPPINGS for held in await holders_of_claim(conn, Claim(kind, name), upto=upto)]


async def _device(conn: AsyncConnection, name: str, upto: Position) -> list[Holding]:
    return await holders_of_claim(conn, Claim("pci", name), upto=upto)


NAMED: Final[dict[Kind, Callable[[AsyncConnection, str, Position], Awaitable[list[Holding]]]]] = {
    "address": _address,
    "ingress": _mapping,
    "device": _device,
}


def held_at(holdings: Iterable[Holding], position: Position) -> list[Holding]:
    """Return the holdings that were in effect at a position. `holdings` has all holdings of the claims concerned, in
    ledger order.
    """
    last = {held.claim: held for held in holdings if held.position <= position}
    return [held for held in last.values() if held.stream is not None]
