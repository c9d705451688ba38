"""Extend the ledger's Merkle tree by final leaves, and store a signed head of it.

One transaction inserts the completed subtrees and the head, so a crash leaves either both or none. The number of the
head is a primary key: of two sealers that act at the same time, one fails and starts again from the stored head. The
sealer signs leaves as they are stored. It does not compute them again: a row that was edited before it was sealed, with
its old leaf, then differs from the sealed leaf.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, LiteralString, NamedTuple

import psycopg

from control_plane.audit.heads import Head, Part, SignedHead, sign_head, text_digest
from control_plane.audit.parts import part_digests
from control_plane.audit.stored_tree import STORED_LEVEL, last_head, load_frontier, store
from events.ledger.connection import fetch_row, fetch_rows, fetch_value
from events.ledger.tree import HASH_BYTES, Frontier
from events.values import Position
from tasks.failpoints import failpoint
from tasks.signing import Signer

_RANGE: Final[LiteralString] = """
    select position, leaf from ledger.event where position > %(after)s and position <= %(upto)s
    union all
    select position, leaf from ledger.dead_position where position > %(after)s and position <= %(upto)s
"""
_LEAVES: Final[LiteralString] = f"select position, leaf from ({_RANGE}) leaves order by position"  # noqa: S608, no input
# The leaves as one value: a row for each of them would cost the sealer, and so the appends, more than the tree.
_JOINED: Final[LiteralString] = f"""
select string_agg(leaf, '' order by position) as leaves, count(*) as number,
       bool_and(position = expected and octet_length(leaf) = {HASH_BYTES}) as is_complete
  from (select position, leaf, %(after)s + row_number() over (order by position) as expected
          from ({_RANGE}) leaves) numbered
"""  # noqa: S608, no input
_EPOCH: Final = "select ledger.current_epoch()"
STATE_SECONDS: Final = 1.0
"""Age from which `Sealer.refresh_state` reads the digests of the parts again."""
OLDEST_STATE_SECONDS: Final = 3.0
"""Age from which a head with new positions waits for the digests."""


class LedgerIncomplete(Exception):
    """A position that was final has no row any more, or two rows."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"position {position} must have one event or be recorded as dead, but it has no row or two;"
            " rows of the ledger were changed"
        )


class _Joined(NamedTuple):
    leaves: bytes
    number: int
    is_complete: bool


class _Leaf(NamedTuple):
    position: int
    leaf: bytes


def utc_now() -> datetime:
    """Return the time of this machine, which does not depend on the database."""
    return datetime.now(UTC)


class Sealer:
    """The tree at its newest head, and the connection that extends it. Use it in one asyncio task only."""

    def __init__(
        self,
        conn: psycopg.AsyncConnection,
        signer: Signer,
        frontier: Frontier,
        last: SignedHead | None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._conn, self._signer, self._clock = conn, signer, clock
        self._frontier, self.last = frontier, last
        self._state: dict[Part, str] = {}
        self._state_read = -OLDEST_STATE_SECONDS

    @classmethod
    async def load(
        cls, conn: psycopg.AsyncConnection, signer: Signer, clock: Callable[[], datetime] = utc_now
    ) -> "Sealer":
        """Continue at the newest stored head; `conn` is in autocommit mode. Raises `TreeDamaged`."""
        last = await last_head(conn)
        return cls(conn, signer, await load_frontier(conn, last), last, clock)

    @property
    def position(self) -> Position:
        """The last sealed position."""
        return Position(self._frontier.size)

    async def seal(self, upto: Position) -> SignedHead | None:
        """Seal all positions up to `upto`, which are final, and return the new head.

        Returns None if there is nothing new: no position, and all digests are those of the newest head. Raises
        `LedgerIncomplete`, and `psycopg.errors.UniqueViolation` if another sealer has stored a head meanwhile.
        """
        async with self._conn.transaction():
            leaves = await self._leaves(upto)
            state = await self._digests(upto, fresh=not leaves)
            if not leaves and self.last is not None and _is_same(state, self.last.head.state):
                return None
            frontier = self._frontier.copy()
            nodes = frontier.extend(leaves, STORED_LEVEL)
            signed = sign_head(self._signer, await self._head(frontier, state))
            await store(self._conn, signed, leaves, nodes)
            failpoint("seal.before_commit")
        failpoint("seal.committed")
        self._frontier, self.last = frontier, signed
        return signed

    async def _leaves(self, upto: Position) -> list[bytes]:
        if upto <= self.position:
            return []
        limits = {"after": self.position, "upto": upto}
        joined = await fetch_row(self._conn, _Joined, _JOINED, limits, prepare=True)
        if joined is not None and joined.is_complete and joined.number == upto - self.position:
            leaves = joined.leaves
            return [leaves[at : at + HASH_BYTES] for at in range(0, len(leaves), HASH_BYTES)]
        rows = await fetch_rows(self._conn, _Leaf, _LEAVES, limits)
        for position, row in enumerate(rows, self.position + 1):
            if row.position != position:
                raise LedgerIncomplete(min(position, row.position))
        if len(rows) != upto - self.position:
            raise LedgerIncomplete(self.position + len(rows) + 1)
        return [row.leaf for row in rows]

    async def refresh_state(self) -> None:
        """Read the digests of the parts that do not depend on sealed positions, if they are `STATE_SECONDS` old. To be
        called after a head, so that the positions of the next head do not wait for them.
        """
        if time.monotonic() >= self._state_read + STATE_SECONDS:
            async with self._conn.transaction():
                await self._read_state()

    async def _digests(self, upto: Position, *, fresh: bool) -> dict[Part, str]:
        """Return the digests of all parts. Unless `fresh`, those that do not depend on the sealed positions may be as
        old as the head before: at a high rate of events, reading them for each head would delay it.
        """
        if fresh or time.monotonic() >= self._state_read + OLDEST_STATE_SECONDS:
            await self._read_state()
        found = self._state | await part_digests(self._conn, [Part.KEYS], self.position, upto)
        return {each: found[each] for each in Part}

    async def _read_state(self) -> None:
        """Read the digests in the current transaction."""
        began = time.monotonic()
        self._state = await part_digests(self._conn, [each for each in Part if each is not Part.KEYS])
        self._state_read = began

    async def _head(self, frontier: Frontier, state: dict[Part, str]) -> Head:
        last = self.last
        return Head(
            number=1 if last is None else last.head.number + 1,
            size=frontier.size,
            root=frontier.root.hex(),
            epoch=await fetch_value(self._conn, _EPOCH),
            sealed_at=self._clock(),
            previous=None if last is None else text_digest(last.text),
            state=state,
        )


def _is_same(state: Mapping[Part, str], other: Mapping[Part, str]) -> bool:
    """Return whether two heads of the same size would have the same digests. That of keys concerns the events between
    them, of which there are none.
    """
    return all(state[part] == other.get(part) for part in Part if part is not Part.KEYS)
