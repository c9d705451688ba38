"""The Merkle tree as the sealer has stored it: heads with the leaves that each adds, and hashes of complete subtrees.

Nothing here reads the events: a proof is made from what was sealed. If an event was changed since, the proof still
verifies against the signed head, and the event's own leaf differs from the leaf in the proof.
"""

from collections.abc import Iterable, Sequence
from typing import Final, LiteralString, NamedTuple

import psycopg

from control_plane.audit.heads import SignedHead, head_of
from events.ledger.connection import fetch_rows, fetch_value
from events.ledger.tree import (
    HASH_BYTES,
    CompletedNode,
    Frontier,
    Range,
    Subtree,
    joined,
    range_subtrees,
)

STORED_LEVEL: Final = 8
"""Level from which on complete subtrees are stored. Smaller ones are computed from their leaves, at most 255."""

_LAST: Final = "select signed from ledger.tree_head order by number desc limit 1"
_OF_SIZE: Final = "select signed from ledger.tree_head where size = %s order by number limit 1"
_NODES: Final[LiteralString] = """
select n.level, n.index as number, n.hash from ledger.tree_node n
  join unnest(%s::smallint[], %s::bigint[]) as wanted(level, index) using (level, index)
"""
# The upper bound on the size keeps the scan short: the first head that has the last of the leaves.
_LEAVES: Final[LiteralString] = """
select size - octet_length(leaves) / 32 as begin, leaves from ledger.tree_head
 where size > %(begin)s and size <= (select min(size) from ledger.tree_head where size >= %(end)s) and leaves <> ''
 order by size, number
"""
_INSERT_NODES: Final = (
    "insert into ledger.tree_node select * from unnest(%s::smallint[], %s::bigint[], %s::bytea[])"
)
_INSERT_HEAD: Final = """
insert into ledger.tree_head (number, size, epoch, sealed_at, signed, leaves) values (%s, %s, %s, %s, %s, %s)
"""


class TreeDamaged(Exception):
    """The stored tree lacks a part or does not match its head; the message names it."""


class _Added(NamedTuple):
    begin: int
    leaves: bytes


class _Node(NamedTuple):
    level: int
    number: int
    hash: bytes


async def last_head(conn: psycopg.AsyncConnection) -> SignedHead | None:
    """Return the newest head, or None. Its signature is not verified."""
    text = await last_head_text(conn)
    return None if text is None else head_of(text)


async def last_head_text(conn: psycopg.AsyncConnection) -> str | None:
    """Return the signed text of the newest head, or None."""
    text: str | None = await fetch_value(conn, _LAST)
    return text


async def head_of_size(conn: psycopg.AsyncConnection, size: int) -> SignedHead | None:
    """Return the first head of this size, or None. Its signature is not verified."""
    text = await fetch_value(conn, _OF_SIZE, [size])
    return None if text is None else head_of(text)


async def load_frontier(conn: psycopg.AsyncConnection, head: SignedHead | None) -> Frontier:
    """Return the right edge of the stored tree at a head. Raises `TreeDamaged` if it does not have the head's root."""
    if head is None:
        return Frontier()
    subtrees = range_subtrees(Range(0, head.head.size))
    hashes = await _hashes(conn, subtrees)
    frontier = Frontier(head.head.size, [hashes[each] for each in subtrees])
    if frontier.root.hex() != head.head.root:
        raise TreeDamaged(
            f"the stored tree of {head.head.size} leaves has the root {frontier.root.hex()}, but head"
            f" {head.head.number} has {head.head.root}; compare the ledger with a kept head (sliceplane audit verify)"
        )
    return frontier


async def range_hashes(conn: psycopg.AsyncConnection, ranges: Sequence[Range]) -> list[bytes]:
    """Return the hashes of ranges of leaves that heads cover. Raises `TreeDamaged`."""
    parts = [range_subtrees(each) for each in ranges]
    hashes = await _hashes(conn, [subtree for part in parts for subtree in part])
    return [joined([hashes[subtree] for subtree in part]) for part in parts]


async def sealed_leaf(conn: psycopg.AsyncConnection, position: int) -> bytes:
    """Return the leaf of a position as it was sealed. Raises `TreeDamaged`."""
    [leaf] = await range_hashes(conn, [Range(position - 1, position)])
    return leaf


async def store(
    conn: psycopg.AsyncConnection, signed: SignedHead, leaves: Sequence[bytes], nodes: Iterable[CompletedNode]
) -> None:
    """Insert a head with its leaves and the subtrees that it completes, in the caller's transaction. Raises
    `psycopg.errors.UniqueViolation` if there is a head with this number.
    """
    head, completed = signed.head, list(nodes)
    if completed:
        levels, indexes = (
            [each.subtree.level for each in completed],
            [each.subtree.number for each in completed],
        )
        await conn.execute(_INSERT_NODES, [levels, indexes, [each.hash for each in completed]])
    await conn.execute(
        _INSERT_HEAD,
        [head.number, head.size, head.epoch, head.sealed_at, signed.text, b"".join(leaves)],
    )


async def _hashes(conn: psycopg.AsyncConnection, subtrees: Sequence[Subtree]) -> dict[Subtree, bytes]:
    stored = [each for each in subtrees if each.level >= STORED_LEVEL]
    found: dict[Subtree, bytes] = {}
    if stored:
        wanted = [[each.level for each in stored], [each.number for each in stored]]
        rows = await fetch_rows(conn, _Node, _NODES, wanted)
        found = {Subtree(row.level, row.number): row.hash for row in rows}
        if missing := [each for each in stored if each not in found]:
            raise TreeDamaged(
                f"the stored tree lacks the subtree {missing[0].number} of level {missing[0].level}"
            )
    for each in subtrees:
        if each.level < STORED_LEVEL:
            frontier = Frontier()
            frontier.extend(await _leaves(conn, each.leaves), from_level=STORED_LEVEL)
            found[each] = frontier.root
    return found


async def _leaves(conn: psycopg.AsyncConnection, wanted: Range) -> list[bytes]:
    rows = await fetch_rows(conn, _Added, _LEAVES, {"begin": wanted.begin, "end": wanted.end})
    leaves: list[bytes] = []
    for row in rows:
        first = max(wanted.begin, row.begin) - row.begin
        last = min(wanted.end - row.begin, len(row.leaves) // HASH_BYTES)
        leaves += [row.leaves[place * HASH_BYTES : (place + 1) * HASH_BYTES] for place in range(first, last)]
    if len(leaves) != wanted.end - wanted.begin:
        raise TreeDamaged(f"the heads lack leaves of the positions {wanted.begin + 1} to {wanted.end}")
    return leaves
