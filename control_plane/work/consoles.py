"""`work.console`: console sessions that may still be used or are open. A row is deleted when its session has ended.

The row has the hash of the session's ticket, except for an SSH connection, which has no ticket; the lock of the row
makes the ticket single-use. `version` is the version of the session's stream: the holder of the row's lock can append
at this version. `seen_at` is the last update by the process that has the caller's connection.

The process of a terminal cannot verify the credential of the caller. Its row has what can end the credential instead:
its expiry, and the streams of its events with the sum of their versions. The session ends with the first new event.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.work.tables import console
from events.ledger.connection import fetch_rows, ledger_connection
from events.values import AllocationId, ConsoleId, NodeId, SlotId, StreamId
from read_models import slots

State = Literal["requested", "connecting", "connected"]
TicketKind = Literal["serial", "graphics"]
"""What a session of an admin reaches: the serial port of a slice, or its display."""
ConsoleKind = Literal["serial", "graphics", "ssh", "terminal"]
"""What a session reaches. Through the SSH gateway, `ssh`: the SSH port of a slice, and `terminal`: a shell of a slice,
in which the gateway logs in."""
OF_GATEWAY: Final = ("ssh", "terminal")
"""Kinds of the sessions that a process of the SSH gateway has."""
SILENT: Final = timedelta(seconds=10)
"""Time without an update of `seen_at` after which the process of a session counts as ended."""
KEPT: Final = timedelta(minutes=10)
"""Time for which an unused ticket is remembered after its expiry, so that a late use is recorded."""
_COLUMNS: Final = (
    "console_id, version, allocation_id, slot_id, node_id, kind, shared, actor, origin, ticket_sha256, ticket_expires_at,"
    " stream_id, state, cut_reason, seen_at"
)
_LOCKED: Final = f"select {_COLUMNS} from work.console where console_id = %s for update"  # noqa: S608 (constants)
_OPEN: Final = f"""
select {_COLUMNS} from work.console
where state <> 'requested' and seen_at > clock_timestamp() - %s order by console_id
"""  # noqa: S608 (constants)
_LOST: Final = f"""
select {_COLUMNS} from work.console where state <> 'requested' and seen_at <= clock_timestamp() - %s
order by console_id limit 10 for update skip locked
"""  # noqa: S608 (constants)
_SSH: Final = f"""
select {_COLUMNS} from work.console where allocation_id = %s and kind = any(%s) and case
  when state = 'requested' then ticket_expires_at > %s
  else seen_at > clock_timestamp() - %s
end
"""  # noqa: S608 (constants)
_FORGET: Final = """
delete from work.console where state = 'requested' and ticket_expires_at < clock_timestamp() - %s
"""
_BIND: Final = """
update work.console set credential_streams = %s::text[], credential_versions =
  (select coalesce(sum(h.version), 0) from ledger.head h where h.stream_id = any(%s::text[])), credential_expires_at = %s
where console_id = %s
"""
# One statement that updates `seen_at`, and returns why the session has to end.
_CHECK: Final = """
update work.console c set seen_at = clock_timestamp() where console_id = %s
returning case
  when c.cut_reason is not null then 'cut'
  when not exists (select from read.slot s where s.slot_id = c.slot_id and s.state = 'claimed'
    and s.allocation_id = c.allocation_id) then 'slice_not_on_node'
  when not exists (select from work.node_session n where n.node_id = c.node_id
    and n.expires_at > clock_timestamp()) then 'node_revoked'
  when c.credential_expires_at <= clock_timestamp() or c.credential_versions <>
    (select coalesce(sum(h.version), 0) from ledger.head h where h.stream_id = any(c.credential_streams))
    then 'credential_ended'
end as code, c.cut_reason
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleRow:
    """A console session that may still be used, or is open."""

    console_id: ConsoleId
    version: int
    allocation_id: AllocationId
    slot_id: SlotId
    node_id: NodeId
    kind: ConsoleKind
    shared: bool
    actor: str
    origin: str | None
    ticket_sha256: str | None
    ticket_expires_at: datetime | None
    stream_id: UUID
    state: State
    cut_reason: str | None
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Check:
    """Why a session has to end: a code, or None if it may go on. `cut_reason` is the reason that an admin gave."""

    code: str | None
    cut_reason: str | None


async def is_released(conn: AsyncConnection, slot: SlotId, allocation: AllocationId) -> bool:
    """Return whether an allocation no longer holds its slot."""
    query = sa.select(slots.slot.c.slot_id).where(
        slots.slot.c.slot_id == slot,
        slots.slot.c.state == "claimed",
        slots.slot.c.allocation_id == allocation,
    )
    return await conn.scalar(query) is None


async def insert(conn: AsyncConnection, row: dict[str, Any]) -> None:
    await conn.execute(sa.insert(console).values(**row))


async def bind_to_credential(
    conn: AsyncConnection, console_id: ConsoleId, streams: Sequence[StreamId], expires_at: datetime | None
) -> None:
    """End a session with the first new event of these streams, or when the credential of its caller expires."""
    await conn.exec_driver_sql(_BIND, ([*streams], [*streams], expires_at, console_id))


async def locked(conn: AsyncConnection, console_id: str) -> ConsoleRow | None:
    """Return a session and lock its row; None if there is no such session, or it has ended."""
    rows = await fetch_rows(await ledger_connection(conn), ConsoleRow, _LOCKED, [console_id])
    return rows[0] if rows else None


async def change(conn: AsyncConnection, console_id: ConsoleId, **values: Any) -> None:
    await conn.execute(sa.update(console).where(console.c.console_id == console_id).values(**values))


async def delete(conn: AsyncConnection, console_id: ConsoleId) -> None:
    await conn.execute(sa.delete(console).where(console.c.console_id == console_id))


async def open_sessions(conn: AsyncConnection) -> list[ConsoleRow]:
    """Return the sessions that are open, oldest first."""
    return await fetch_rows(await ledger_connection(conn), ConsoleRow, _OPEN, [SILENT])


async def count_ssh(conn: AsyncConnection, allocation: AllocationId, now: datetime) -> int:
    """Return the number of SSH connections to the slices of an allocation that are open, or that a ticket still permits
    to open, including those of terminals.
    """
    values = [allocation, [*OF_GATEWAY], now, SILENT]
    return len(await fetch_rows(await ledger_connection(conn), ConsoleRow, _SSH, values))


async def lost_sessions(conn: AsyncConnection) -> list[ConsoleRow]:
    """Return some sessions of processes that have ended, and lock their rows."""
    return await fetch_rows(await ledger_connection(conn), ConsoleRow, _LOST, [SILENT])


async def forget_unused(conn: AsyncConnection) -> None:
    """Delete sessions of which the ticket expired long ago and was never used."""
    await conn.exec_driver_sql(_FORGET, (KEPT,))


async def check(conn: AsyncConnection, console_id: ConsoleId) -> Check:
    """Record that the process of an open session runs, and return whether the session has to end."""
    rows = await fetch_rows(await ledger_connection(conn), Check, _CHECK, [console_id])
    return rows[0] if rows else Check("ended", None)
