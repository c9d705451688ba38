"""Proofs that the stored tree gives, for the API."""

from typing import NamedTuple

import psycopg

from control_plane.audit.stored_tree import last_head, range_hashes, sealed_leaf
from events.ledger.tree import consistency_ranges, inclusion_ranges


class Inclusion(NamedTuple):
    """The sealed leaf of a position, and the proof that the tree of `size` leaves includes it."""

    position: int
    size: int
    leaf: bytes
    hashes: list[bytes]


async def sealed_size(conn: psycopg.AsyncConnection) -> int:
    """Return the number of sealed positions."""
    last = await last_head(conn)
    return 0 if last is None else last.head.size


async def inclusion(conn: psycopg.AsyncConnection, position: int, size: int) -> Inclusion:
    """Return the proof that the leaf at `position` is in the tree of the first `size` leaves. `position` is at most
    `size`, and a head must cover `size`. Raises `TreeDamaged`.
    """
    hashes = await range_hashes(conn, inclusion_ranges(position - 1, size))
    return Inclusion(position, size, await sealed_leaf(conn, position), hashes)


async def consistency(conn: psycopg.AsyncConnection, first: int, second: int) -> list[bytes]:
    """Return the proof that the tree of `first` leaves is a prefix of that of `second`, which a head must cover. Raises
    `TreeDamaged`.
    """
    return await range_hashes(conn, consistency_ranges(first, second))
