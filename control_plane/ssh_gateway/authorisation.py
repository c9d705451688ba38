"""What an active allocation permits through the SSH gateway, and whether it still permits it.

Only an active allocation permits anything: connections with the keys of its request, and, if the gateway may log in,
terminals and connections with SSH certificates. An allocation that is released, stopped or interrupted permits nothing,
so its connections end.
"""

from base64 import b64decode
from typing import Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.consoles.callers import SessionOver
from control_plane.decisions.allocation_states import Active, fold
from control_plane.histories import allocation_history
from events.ledger.connection import ledger_connection
from events.values import AllocationId, SshPublicKey, StreamId, stream_of_allocation

_VERSION: Final = "select version from ledger.head where stream_id = %s"


class Permitted(NamedTuple):
    """What an active allocation permits: the public keys of its request (RFC 4253 section 6.6), the key of the gateway
    if it may log in, and the user that it logs in as.
    """

    keys: frozenset[bytes]
    gateway_key: SshPublicKey | None
    user: str


class Authorisation:
    """What an allocation permits, read again when the allocation has new events."""

    def __init__(self, engine: AsyncEngine, allocation: AllocationId) -> None:
        self._engine, self.allocation = engine, allocation
        self._stream: StreamId = stream_of_allocation(allocation)
        self._version = 0
        self._permitted: Permitted | None = None

    async def permitted(self) -> Permitted | None:
        """Return what the allocation permits now; None if it is not active."""
        async with self._engine.begin() as conn:
            cursor = await (await ledger_connection(conn)).execute(_VERSION, [self._stream])
            row = await cursor.fetchone()
            if row is not None and row[0] != self._version:
                history = await allocation_history(conn, self.allocation)
                state = fold(tuple(each.fact for each in history))
                self._version = history[-1].version
                self._permitted = _permitted(state) if isinstance(state, Active) else None
        return self._permitted

    async def accepts(self, blob: bytes) -> bool:
        """Return whether the allocation accepts a public key (RFC 4253 section 6.6) of a caller now."""
        permitted = await self.permitted()
        return permitted is not None and blob in permitted.keys

    async def accepts_certificates_of(self, blob: bytes) -> bool:
        """Return whether the allocation accepts SSH certificates that are signed with this key now."""
        permitted = await self.permitted()
        return (
            permitted is not None
            and permitted.gateway_key is not None
            and blob == _blob(permitted.gateway_key)
        )

    async def verify(self) -> None:
        """Raise `SessionOver` if the allocation is no longer active. Its keys never change."""
        if await self.permitted() is None:
            raise SessionOver("allocation_not_active", f"allocation {self.allocation} is no longer active")


def _permitted(state: Active) -> Permitted:
    request, image = state.request, state.specification.image
    return Permitted(
        frozenset(map(_blob, request.ssh_authorized_keys)),
        request.gateway_key,
        image.content.default_user,
    )


def _blob(key: SshPublicKey) -> bytes:
    return b64decode(key.split()[1])
