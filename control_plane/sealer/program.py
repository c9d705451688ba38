"""The sealer program: follow the ledger, extend its Merkle tree, sign heads, and send them out of the database.

The sealer has a database role of its own, which may read what it seals, insert nodes and heads of the tree, and record
positions as dead. One sealer process leads. It reads the ledger behind the appenders' fence as every follower does, so
it never seals a position that may still change, and positions that were never written become leaves without another
reader. Appends never wait for it: a sealer that is stopped only leaves a longer tail unsealed.

A head is sealed `SEAL_SECONDS` after the last head if any position waits, and at once if `SEAL_POSITIONS` positions
wait, which are many: a head costs more than the positions in it. The digests of the other parts are read between
heads. While the ledger is idle, they are compared every `STATE_SECONDS`.

Each sink has a task of its own, which reads the heads from the database and retries until the sink accepts them. It
records in `work.head_sink` which head the sink has stored, and why it stores none. If a
sink holds a head that the database does not have, the database was restored from an older state or cut, and the sealer
seals nothing until the ledger has a later epoch than that head: it would sign a second history otherwise. A sink that
is unavailable never stops the sealer; it is checked as soon as it is available again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

import httpx
import psycopg
import structlog

from control_plane.audit.heads import SignedHead, head_of
from control_plane.audit.stored_tree import TreeDamaged
from control_plane.following.leading import lead
from control_plane.identity.sealing import read_signer
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.sealer.bucket import BucketSink
from control_plane.sealer.sealing import LedgerIncomplete, Sealer
from control_plane.sealer.sinks import FileSink, HttpSink, Sink, SinkUnavailable
from control_plane.settings import ROLE_OF_SEALER, SealerSettings
from control_plane.wiring import database
from events.ledger.connection import fetch_value, fetch_values
from events.ledger.tail import Tail
from tasks.signing import Signer

log = structlog.get_logger()
LEADER: Final = "sealer"
"""Name of the lock that the leading sealer holds."""
SEAL_POSITIONS: Final = 8192
"""Number of positions that the sealer seals with one head while it lags behind the ledger."""
SEAL_SECONDS: Final = 0.7
STATE_SECONDS: Final = 2.0
POLL_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 1.0
_HEADS: Final = "select signed from ledger.tree_head where number > %s order by number limit 100"
_HEAD: Final = "select signed from ledger.tree_head where number = %s"
_EPOCH: Final = "select ledger.current_epoch()"
_STORED: Final = """
insert into work.head_sink (name, number, stored_at) values (%(name)s, %(number)s, clock_timestamp())
on conflict (name) do update
   set number = excluded.number, stored_at = excluded.stored_at, failing_since = null, error = null
"""
_FAILED: Final = """
insert into work.head_sink (name, failing_since, error) values (%(name)s, clock_timestamp(), %(error)s)
on conflict (name) do update
   set error = excluded.error, failing_since = coalesce(head_sink.failing_since, excluded.failing_since)
"""
_FORGET: Final = "delete from work.head_sink where name <> all(%s)"


class LedgerRestored(Exception):
    """A sink holds a head that the database does not have."""

    def __init__(self, sink: str, head: SignedHead) -> None:
        found = head.head
        super().__init__(
            f"{sink} holds head {found.number} of {found.size} positions in epoch {found.epoch}, which the database does"
            " not have: the ledger was restored from an older state, or heads were removed. If it was restored, begin an"
            " epoch with ledger.begin_epoch, and the sealer continues; else preserve the database as evidence"
        )


async def run_sealer(settings: SealerSettings) -> None:
    """Run the sealer until cancelled. Raises `NoSigningKey`, `DatabaseUnavailable`, `UnfitServer`."""
    signer = read_signer(settings.sealing_key_file)
    async with database(settings, pool=1, role=ROLE_OF_SEALER) as engine, httpx.AsyncClient() as client:
        dsn = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        sinks = _sinks(settings, client)
        await lead(dsn, LEADER, lambda: _lead(dsn, signer, sinks))


def _sinks(settings: SealerSettings, client: httpx.AsyncClient) -> tuple[Sink, ...]:
    file, url, bucket = settings.heads_file, settings.heads_url, settings.heads_bucket_url
    return (
        *([FileSink(file)] if file else []),
        *([HttpSink(url, client)] if url else []),
        *([_bucket_sink(settings, bucket)] if bucket else []),
    )


def _bucket_sink(settings: SealerSettings, url: str) -> Sink:
    return BucketSink(
        url,
        settings.heads_bucket_access_key,
        settings.heads_bucket_secret_key.get_secret_value(),
        region=settings.heads_bucket_region,
        retention=timedelta(days=settings.heads_bucket_days),
    )


async def _lead(dsn: str, signer: Signer, sinks: Sequence[Sink]) -> None:
    sealed, connected = [asyncio.Event() for _ in sinks], asyncio.Event()
    log.info("sealer_started", key=signer.kid, sinks=[each.name for each in sinks])
    async with asyncio.TaskGroup() as group:
        for sink, event in zip(sinks, sealed, strict=True):
            group.create_task(_ship(dsn, sink, event, connected))
        group.create_task(_seal_until_cancelled(dsn, signer, sinks, sealed, connected))


async def _seal_until_cancelled(
    dsn: str,
    signer: Signer,
    sinks: Sequence[Sink],
    sealed: Sequence[asyncio.Event],
    connected: asyncio.Event,
) -> None:
    while True:
        try:
            await _seal(dsn, signer, sinks, sealed, connected)
        except (TreeDamaged, LedgerIncomplete, LedgerRestored) as error:
            log.error("sealer_refused_to_seal", error=str(error))
        except (psycopg.errors.UniqueViolation, *DATABASE_UNAVAILABLE) as error:
            log.warning("sealing_restarted_after_error", error=str(error))
        await rest(RETRY_SECONDS)


async def _seal(
    dsn: str,
    signer: Signer,
    sinks: Sequence[Sink],
    sealed: Sequence[asyncio.Event],
    connected: asyncio.Event,
) -> None:
    """Seal new positions of the ledger until an error occurs. `connected` is set each time a sink becomes available."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as opened:
        conn = await opened.enter_async_context(await _connection(dsn))
        tail = Tail(dsn, "sealer")
        opened.push_async_callback(tail.close)
        await conn.execute(_FORGET, [[each.name for each in sinks]])
        await refuse_restored_ledger(conn, sinks)
        sealer = await Sealer.load(conn, signer)
        final, last = sealer.position, loop.time() - STATE_SECONDS
        while True:
            if connected.is_set():
                connected.clear()
                await refuse_restored_ledger(conn, sinks)
            final = await tail.next_final(final, SEAL_POSITIONS)
            waiting, quiet = final - sealer.position, loop.time() - last
            if waiting >= SEAL_POSITIONS or quiet >= (SEAL_SECONDS if waiting else STATE_SECONDS):
                last = loop.time()
                if await sealer.seal(final) is not None:
                    for event in sealed:
                        event.set()
                await sealer.refresh_state()
            if waiting < SEAL_POSITIONS:
                await rest(POLL_SECONDS)


async def refuse_restored_ledger(conn: psycopg.AsyncConnection, sinks: Sequence[Sink]) -> None:
    """Raise `LedgerRestored` if a sink holds a head that the database does not have, unless the ledger has a later
    epoch than that head. A sink that is unavailable is not checked.
    """
    for sink in sinks:
        try:
            await first_to_send(conn, sink)
        except SinkUnavailable as error:
            log.warning("head_sink_not_checked", sink=sink.name, error=str(error))


async def _ship(dsn: str, sink: Sink, sealed: asyncio.Event, connected: asyncio.Event) -> None:
    """Send each head to a sink, until cancelled; set `connected` when the sink becomes available."""
    unavailable = False
    while True:
        try:
            async with await _connection(dsn) as conn, _failures_recorded(conn, sink):
                # What a sink has stored is read from the sink at the start: no commit has to wait for the disk.
                await conn.execute("set synchronous_commit = off")
                number = await first_to_send(conn, sink)
                connected.set()
                while True:
                    texts = await fetch_values(conn, _HEADS, [number])
                    for text in texts:
                        head = head_of(text)
                        await sink.send(head)
                        number, unavailable = head.head.number, False
                    if texts:
                        await conn.execute(_STORED, {"name": sink.name, "number": number})
                    sealed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RETRY_SECONDS):
                            await sealed.wait()
        except (SinkUnavailable, *DATABASE_UNAVAILABLE) as error:
            if not unavailable:
                log.warning("heads_not_sent", sink=sink.name, error=str(error))
            unavailable = True
        except LedgerRestored:
            connected.set()  # the sealer checks the sink, and then seals nothing
        await rest(RETRY_SECONDS)


@contextlib.asynccontextmanager
async def _failures_recorded(conn: psycopg.AsyncConnection, sink: Sink) -> AsyncIterator[None]:
    """Record in the database why no heads are sent to a sink."""
    try:
        yield
    except (SinkUnavailable, LedgerRestored) as error:
        await conn.execute(_FAILED, {"name": sink.name, "error": str(error)})
        raise


async def first_to_send(conn: psycopg.AsyncConnection, sink: Sink) -> int:
    """Return the number after which heads must be sent to a sink: that of its last head if the database has this head,
    else 0 for a sink without heads or with heads of an earlier epoch. Raises `LedgerRestored` and `SinkUnavailable`.
    """
    held = await sink.last()
    if held is None:
        return 0
    if await fetch_value(conn, _HEAD, [held.head.number]) == held.text:
        return held.head.number
    if held.head.epoch >= await fetch_value(conn, _EPOCH):
        raise LedgerRestored(sink.name, held)
    return 0


async def _connection(dsn: str) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name="sealer")
