"""The keys that an allocation accepts, and whether a connection with one of them may go on.

Only an active allocation accepts keys: those of its request, and SSH certificates that are signed with its gateway key
if it has one. An allocation that is released, stopped or interrupted accepts none, so its connections end.
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
        self.gateway_key: SshPublicKey | None = None
        """Gateway key of the active allocation, when it was read last; None: it has none, or is not active."""

    async def accepts(self, blob: bytes) -> bool:
        """Return whether the allocation accepts a public key (RFC 4253 section 6.6) now."""
        await self._read()
        return blob in self._blobs

    async def accepts_certificates_of(self, blob: bytes) -> bool:
        """Return whether the allocation accepts SSH certificates that are signed with this key now."""
        await self._read()
        return self._is_authority(blob)

    def _is_authority(self, blob: bytes) -> bool:
        return self.gateway_key is not None and blob == _blob(self.gateway_key)

    async def _read(self) -> None:
        async with self._engine.begin() as conn:
            cursor = await (await ledger_connection(conn)).execute(_VERSION, [self._stream])
            row = await cursor.fetchone()
            if row is not None and row[0] != self._version:
                history = await allocation_history(conn, self.allocation)
                state = fold(tuple(each.fact for each in history))
                request = state.request if isinstance(state, Active) else None
                self.gateway_key = request.gateway_key if request else None
                keys = request.ssh_authorized_keys if request else ()
                self._version, self._blobs = history[-1].version, frozenset(map(_blob, keys))

    async def verify(self, blob: bytes) -> None:
        """Raise `SessionOver` if the allocation no longer accepts a key, or certificates that are signed with it."""
        if not (await self.accepts(blob) or self._is_authority(blob)):
            raise SessionOver("allocation_not_active", f"allocation {self.allocation} is no longer active")


def _blob(key: SshPublicKey) -> bytes:
    return b64decode(key.split()[1])
