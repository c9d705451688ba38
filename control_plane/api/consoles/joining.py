"""The two ends of a console session: the caller's end, in a process of the API or of the SSH gateway, and the node's
end, in a process of the API.

The caller's end owns the session: it records that the session is connected before it passes on the first byte, and it
records why the session has ended. Every second, it checks that the session may go on: the caller is still authorised,
the allocation holds its slot, the node has a session with the control plane, and no admin has cut the console session.
It also limits the duration of the session, and the time without input of a person
(`control_plane.api.consoles.viewer_messages` for a display).

Each end reads from its connection only what the other end has room for, so a slow reader slows the sender down, through
both processes, to the guest or to the keyboard.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import structlog
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from control_plane.api.consoles.callers import ConnectedCaller, SessionOver
from control_plane.commands.consoles.session_commands import record_connected, record_end
from control_plane.decisions.refusals import Refused
from control_plane.identity.sealing import OrderKeys
from control_plane.origin import Origin
from control_plane.outage import DATABASE_UNAVAILABLE, REDIS_UNAVAILABLE
from control_plane.queues.node_streams import ANSWER_SECONDS, request_stream, withdraw_request
from control_plane.queues.redis_nodes import RedisUnavailable
from control_plane.queues.stream_pairs import PairEnded, StreamEnd, stream_end
from control_plane.wiring import Plane
from control_plane.work import consoles
from control_plane.work.consoles import ConsoleKind
from events.facts import Reason
from events.values import ConsoleId, NodeId, new_uuid
from tasks.streams import ConsoleOpened, StreamKind, StreamRequest

log = structlog.get_logger()
CHECK_SECONDS: Final = 1.0
_FIRST: Final = 10.0
_STREAM_KINDS: Final[Mapping[ConsoleKind, StreamKind]] = {
    "serial": "serial_console",
    "graphics": "graphics",
    "ssh": "ssh",
    "terminal": "ssh",
}
"""Kind of the stream that the node opens, by the kind of the session."""
_CUT: Final = {
    "slice_not_on_node": "the allocation no longer holds the slot",
    "node_revoked": "the node has no valid session",
    "credential_ended": "the credential with which the terminal was opened has ended or was changed; open it again",
    "ended": "the session was recorded as ended",
}


class CallerEnd:
    """The caller's end of a console session, in the process with the caller's connection. The caller must have been
    authorised before.
    """

    def __init__(
        self, plane: Plane, keys: OrderKeys, caller: ConnectedCaller, console: ConsoleId, stream: UUID
    ) -> None:
        self._plane, self._keys, self._caller = plane, keys, caller
        self._console, self._stream = console, stream
        self._clock = asyncio.get_running_loop().time
        self._began = self._last_input = self._clock()
        self._origin = Origin(caller.actor, f"console session {console}", new_uuid())

    async def run(self) -> Reason:
        """Run the session until it ends, and return the reason of its end."""
        reason = Reason("internal_error", "the session failed; the log of the API has the cause")
        try:
            reason = await self._session()
        finally:
            # Recorded even if this task is cancelled, because the process ends.
            await asyncio.shield(self._record_end(reason))
        return reason

    async def _record_end(self, reason: Reason) -> None:
        try:
            await self._plane.handle(record_end(self._console, reason, self._origin))
        except (Refused, *DATABASE_UNAVAILABLE) as error:
            # Another process records the end as soon as the row of this session was not updated for ten seconds.
            log.warning("console_end_not_recorded", console_id=self._console, error=str(error))

    async def _session(self) -> Reason:
        redis = self._plane.redis
        try:
            async with stream_end(redis, self._stream, "caller") as end:
                node = await self._request()
                try:
                    await _until_one_ends(
                        end.run(ANSWER_SECONDS + _FIRST), self._check_repeatedly(), self._pass_on(end)
                    )
                finally:
                    await end.close("")
                    with suppress(RedisUnavailable):
                        await withdraw_request(redis, node, self._stream)
        except SessionOver as over:
            return over.reason
        except PairEnded:
            return Reason("closed_by_node", "the node closed the console, or its connection is lost")
        except (RedisUnavailable, *REDIS_UNAVAILABLE) as error:
            return Reason("redis_unavailable", f"Redis does not answer: {error}"[:300])
        return Reason("internal_error", "the session ended for an unknown reason")

    async def _request(self) -> NodeId:
        """Request the node of the slice to open the console, and return the id of the node. Raises `SessionOver`."""
        async with self._plane.engine.begin() as conn:
            row = await consoles.locked(conn, self._console)
            now = await self._plane.handle.clock(conn)
        if row is None:
            raise SessionOver("ended", _CUT["ended"])
        request = StreamRequest(
            stream_id=self._stream,
            kind=_STREAM_KINDS[row.kind],
            node_id=row.node_id,
            slot_id=row.slot_id,
            allocation_id=row.allocation_id,
            shared=row.shared,
        )
        redis, keys = self._plane.redis, self._keys
        await request_stream(redis, lambda text, until: keys.seal(text, until, None), request, now)
        return row.node_id

    async def _pass_on(self, end: StreamEnd) -> None:
        """Wait until the node has opened the console, record the connection, and pass bytes on until one of the two
        ends ends the session. Raises `SessionOver`.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                failure = await end.wait_until_opened()
        except TimeoutError:
            message = f"the node did not answer within {ANSWER_SECONDS:.0f} s"
            raise SessionOver("node_not_responding", message) from None
        if failure:
            code, _, message = failure.partition(" ")
            raise SessionOver(code, message)
        try:
            # If this cannot be recorded, no byte is passed on.
            await self._plane.handle(record_connected(self._console, self._origin))
        except (Refused, *DATABASE_UNAVAILABLE) as error:
            raise SessionOver(
                "not_recorded", f"the connection could not be recorded: {error}"[:300]
            ) from None
        await self._caller.connected()
        self._began = self._last_input = self._clock()
        await _until_one_ends(self._input(end), _output(self._caller, end))

    async def _input(self, end: StreamEnd) -> None:
        while True:
            data = await self._caller.receive()
            if self._caller.has_input(data):
                self._last_input = self._clock()
            await end.send(data)

    def _check_duration(self) -> None:
        # Not in `_input`, which also waits for the guest to take earlier input.
        limits, now = self._plane.settings, self._clock()
        if now - self._began > limits.console_hours * 3600:
            raise SessionOver("too_long", f"a session lasts at most {limits.console_hours:g} hours")
        if now - self._last_input > limits.console_idle_minutes * 60:
            raise SessionOver("idle", f"no input for {limits.console_idle_minutes:g} minutes")

    async def _check_repeatedly(self) -> None:
        """Check every second that the session may go on. Raises `SessionOver`."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._check_duration()
            try:
                await self._caller.verify()
                async with self._plane.engine.begin() as conn:
                    found = await consoles.check(conn, self._console)
            except DATABASE_UNAVAILABLE as error:
                # It is not known whether the session may go on.
                message = f"the database does not answer: {error}"[:300]
                raise SessionOver("database_unavailable", message) from None
            if found.code == "cut":
                raise SessionOver("cut", f"cut by {found.cut_reason}")
            if found.code is not None:
                raise SessionOver(found.code, _CUT[found.code])


async def _output(caller: ConnectedCaller, end: StreamEnd) -> None:
    while True:
        await caller.send(await end.receive())


async def _until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts of a session until the first of them ends. If it ends with an exception, raise this exception."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def join_node(plane: Plane, socket: WebSocket, stream: UUID, node: NodeId) -> None:
    """Connect the node at `socket`, which opens the requested stream `stream`, with the caller's end of the stream,
    until one of the two ends the stream.
    """
    try:
        async with stream_end(plane.redis, stream, "node") as end:
            opened = await _opened(socket)
            await end.opened(opened)
            if opened:
                return
            try:
                await _until_one_ends(end.run(_FIRST), _from_node(socket, end), _to_node(socket, end))
            except PairEnded:
                log.info("slice_stream_of_node_lost_its_caller", stream_id=str(stream), node=node)
            finally:
                await end.close("")
    except REDIS_UNAVAILABLE as error:
        log.info(
            "slice_stream_of_node_ended_because_redis_is_unavailable",
            stream_id=str(stream),
            node=node,
            error=str(error),
        )


async def _opened(socket: WebSocket) -> str:
    """Read the first message of a node. Return the failure in this message as a code and a text, separated by a space;
    or an empty text if the node has opened the console.
    """
    try:
        async with asyncio.timeout(_FIRST):
            found = ConsoleOpened.model_validate_json(await socket.receive_text())
    except (TimeoutError, KeyError, ValidationError, WebSocketDisconnect, RuntimeError):
        return "stream_failed the node did not open the console"
    failure = found.failure
    return "" if failure is None else f"{failure.code} {failure.message}"


async def _from_node(socket: WebSocket, end: StreamEnd) -> None:
    with suppress(WebSocketDisconnect, RuntimeError, KeyError):
        while True:
            await end.send(await socket.receive_bytes())


async def _to_node(socket: WebSocket, end: StreamEnd) -> None:
    with suppress(WebSocketDisconnect, RuntimeError, OSError, PairEnded):
        while True:
            await socket.send_bytes(await end.receive())
