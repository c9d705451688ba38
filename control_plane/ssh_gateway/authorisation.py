"""The keys that an allocation accepts, and whether a connection with one of them may go on.

Only an active allocation accepts keys: those of its request. An allocation that is released, stopped or interrupted
accepts none, so its connections end.
"""

from base64 import b64decode
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.consoles.callers import SessionOver
from control_plane.decisions.allocation_states import Active, fold
from control_plane.histories import allocation_history
from events.ledger.connection import ledger_connection
from events.values import AllocationId, SshPublicKey, StreamId, stream_of_allocation

_VERSION: Final = "select version from ledger.head where stream_id = %s"


class Authorisation:
    """The keys that an allocation accepts, read again when the allocation has new events."""

    def __init__(self, engine: AsyncEngine, allocation: AllocationId) -> None:
        self._engine, self.allocation = engine, allocation
        self._stream: StreamId = stream_of_allocation(allocation)
        self._version = 0
        self._blobs: frozenset[bytes] = frozenset()

    async def accepts(self, blob: bytes) -> bool:
        """Return whether the allocation accepts a public key (RFC 4253 section 6.6) now."""
        async with self._engine.begin() as conn:
            cursor = await (await ledger_connection(conn)).execute(_VERSION, [self._stream])
            row = await cursor.fetchone()
            if row is not None and row[0] != self._version:
                history = await allocation_history(conn, self.allocation)
                state = fold(tuple(each.fact for each in history))
                keys = state.request.ssh_authorized_keys if isinstance(state, Active) else ()
                self._version, self._blobs = history[-1].version, frozenset(map(_blob, keys))
        return blob in self._blobs

    async def verify(self, blob: bytes) -> None:
        """Raise `SessionOver` if the allocation no longer accepts a key."""
        if not await self.accepts(blob):
            raise SessionOver("allocation_not_active", f"allocation {self.allocation} is no longer active")


def _blob(key: SshPublicKey) -> bytes:
    return b64decode(key.split()[1])
