"""The API server: one process that answers requests on every address of the settings, alone or as one of several
workers (`control_plane.api.workers`).
"""

import asyncio
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog
import uvicorn

from control_plane.api.app import create_app
from control_plane.api.audit.access_log import AccessLog
from control_plane.api.consoles.sockets import MOST_BYTES, Sockets
from control_plane.api.consoles.tidying import end_lost_consoles
from control_plane.api.feed.feed import Feed
from control_plane.api.workers import open_listener
from control_plane.certificates import server_context
from control_plane.dispatcher.dispatcher_program import ledger_dsn
from control_plane.following.wake import Waiter, listen
from control_plane.identity.code_login import CodeLogin
from control_plane.identity.sealing import order_keys
from control_plane.web.console import Console
from control_plane.wiring import Plane, allow_connections
from control_plane.work.access_rows import Retention
from events.ledger.tail import Tail

log = structlog.get_logger()
LAST_SECONDS: Final = 2
KEEP_ALIVE_SECONDS: Final = 75
"""Time after which an idle connection is closed. It is longer than a node's heartbeat interval, because over TLS a new
connection costs more than the heartbeat.
"""


async def serve(plane: Plane, sockets: Sequence[socket.socket] | None = None) -> None:
    """Serve the API until cancelled; requests in progress are then answered, for at most `LAST_SECONDS`. `sockets` are
    the listening sockets of a worker; without `sockets`, this function opens the listening sockets.

    Raises `NoSigningKey`, `UnusableCertificate` and `CannotListen` before it serves a request.
    """
    keys, secure = order_keys(plane.settings), server_context(plane.settings)
    allow_connections()
    waiter = Waiter()
    feed = Feed(plane.engine, Tail(ledger_dsn(plane)), waiter)
    access_log = _access_log(plane)
    app = create_app(plane, feed, keys, access_log)
    config = uvicorn.Config(
        Console(Sockets(app), {each.name: CodeLogin(each) for each in plane.settings.oidc if each.client_id}),
        ws="websockets-sansio",
        ws_max_size=MOST_BYTES,
        ws_per_message_deflate=False,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=LAST_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        lifespan="off",
        # The source of a request is then the client that a trusted proxy names.
        forwarded_allow_ips=[str(each) for each in plane.settings.trusted_proxies],
        ssl_context_factory=None if secure is None else lambda _config, _default: secure,
    )
    listening = list(sockets or map(open_listener, plane.settings.listen.split(",")))
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as group:
        background = [
            group.create_task(listen(plane.redis, (waiter,))),
            group.create_task(feed.run()),
            group.create_task(app.state.hub.run()),
            group.create_task(access_log.run()),
            group.create_task(app.state.credential_uses.run()),
            group.create_task(end_lost_consoles(plane)),
        ]
        log.info("api_serving", listen=plane.settings.listen, tls=secure is not None)
        await _until_cancelled(server, listening, feed)
        for task in background:
            task.cancel()


def _access_log(plane: Plane) -> AccessLog:
    settings = plane.settings
    kept = Retention(settings.audit_rows, timedelta(days=settings.audit_days))
    every = settings.audit_nodes == "all"
    return AccessLog(ledger_dsn(plane), kept, reads=settings.audit_reads, nodes=every)


async def _until_cancelled(server: uvicorn.Server, sockets: list[socket.socket], feed: Feed) -> None:
    serving = asyncio.ensure_future(server.serve(sockets))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        # Cancelling the server's own task would close all connections at once and lose responses of committed commands.
        server.should_exit = True
        feed.end_watches()
        await serving
        raise
