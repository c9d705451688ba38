"""Progress of tasks, from nodes to the watchers of an allocation or a task in any process of the API.

A process subscribes in Redis only to nodes with a watcher in this process, so allocations that no client watches cost
nothing. Each watcher has a mailbox with the newest progress report of each task; a slow watcher gets fewer of them and
delays no other watcher. In the stream of a watch, progress is a `progress` message without an id, so that
`Last-Event-ID` remains a ledger cursor.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Final, cast

import msgspec
import redis.asyncio
import sqlalchemy as sa
import structlog
from fastapi import APIRouter, Request
from redis.asyncio.client import PubSub

from control_plane.api.requests.access import NODES, AuthenticatedRoute, CallingNode, credential_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import feed_of, plane_of
from control_plane.api.routes.ledger.watch import watch
from control_plane.outage import REDIS_UNAVAILABLE, raise_if_cancelled, rest
from control_plane.queues.progress import Step, channel_of, keep, newest_of, spread
from events.ledger.search import EventFilter
from events.values import NodeId, Position
from tasks.agent_api import ProgressBatch

log = structlog.get_logger()
router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS, route_class=AuthenticatedRoute)
RETRY_SECONDS: Final = 1.0
_STEPS: Final = msgspec.json.Decoder(list[Step])


@router.post("/progress", status_code=204, openapi_extra=NODES)
async def progress(request: Request, node: CallingNode, body: ProgressBatch) -> None:
    """Report the progress of the node's tasks. Progress is not recorded in the ledger and may be lost."""
    plane = plane_of(request)
    async with plane.engine.begin() as conn:
        steps = await keep(conn, node, body.progress)
    if steps:
        await spread(plane.redis, node, steps)


class Mailbox:
    """Mailbox of one watcher: the newest unread progress of each task that it watches."""

    def __init__(self, wants: Callable[[Step], bool]) -> None:
        self._wants = wants
        self._new: dict[str, Step] = {}
        self._filled = asyncio.Event()

    def put(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if self._wants(step):
                self._new[step.task_id] = step
                self._filled.set()

    async def news(self) -> bytes:
        """Wait for new progress of the watched tasks; return it as server-sent events."""
        await self._filled.wait()
        self._filled.clear()
        found, self._new = self._new, {}
        return b"".join(
            b"event: progress\ndata: " + msgspec.json.encode(step) + b"\n\n" for step in found.values()
        )


class Hub:
    """The watchers' mailboxes of an API process, by node, and the one Redis subscription that fills them.

    `run` must run beside the application.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._boxes: defaultdict[NodeId, set[Mailbox]] = defaultdict(set)
        self._wanted = asyncio.Event()
        self._subscription: PubSub | None = None

    @contextlib.asynccontextmanager
    async def box(self, node: NodeId, wants: Callable[[Step], bool]) -> AsyncIterator[Mailbox]:
        """Provide a mailbox for the progress that a node reports while the `with` block runs."""
        box = Mailbox(wants)
        self._boxes[node].add(box)
        self._wanted.set()
        try:
            if len(self._boxes[node]) == 1:
                await self._change(node, wanted=True)
            yield box
        finally:
            self._boxes[node].discard(box)
            if not self._boxes[node]:
                del self._boxes[node]
                await self._change(node, wanted=False)

    async def run(self) -> None:
        """Receive progress while there are watchers. Runs until cancelled, and reconnects when Redis was lost."""
        while True:
            raise_if_cancelled()
            await self._wanted.wait()
            try:
                await self._listen()
            except REDIS_UNAVAILABLE as error:
                log.info("task_progress_redis_subscription_lost", error=str(error))
                await rest(RETRY_SECONDS)
            finally:
                self._subscription = None

    async def _listen(self) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as subscription:
            if before := set(self._boxes):
                await subscription.subscribe(*map(channel_of, before))
            self._subscription = subscription
            # Boxes that were added while the subscription was not yet available to `_change`.
            if added := set(self._boxes) - before:
                await subscription.subscribe(*map(channel_of, added))
            while self._boxes:
                raise_if_cancelled()
                message = await subscription.get_message(timeout=RETRY_SECONDS)
                if message is not None:
                    self._deliver(message)
            # Clear before the next await: a box that is added after that sets the event again.
            self._wanted.clear()
            self._subscription = None

    def _deliver(self, message: dict[str, bytes]) -> None:
        node = NodeId(message["channel"].decode().partition(":")[2])
        try:
            steps = _STEPS.decode(message["data"])
        except msgspec.DecodeError as error:
            # During an upgrade another version may write a format that this one cannot read. Losing progress is
            # harmless.
            log.info("task_progress_message_unreadable", node=node, error=str(error))
            return
        for box in self._boxes.get(node, ()):
            box.put(steps)

    async def _change(self, node: NodeId, *, wanted: bool) -> None:
        subscription = self._subscription
        if subscription is None:
            return  # `_listen` subscribes to the nodes of all boxes when it connects
        change = subscription.subscribe if wanted else subscription.unsubscribe
        # If the connection is lost, `run` reconnects and subscribes to the nodes of all boxes.
        with contextlib.suppress(*REDIS_UNAVAILABLE):
            await change(channel_of(node))


def hub_of(request: Request) -> Hub:
    return cast(Hub, request.app.state.hub)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a client watches: the events that match a filter after a position, and the progress of tasks of one node."""

    pick: EventFilter
    after: Position
    node: NodeId
    wants: Callable[[Step], bool]
    which: sa.ColumnElement[bool]
    """SQL condition on rows of `work.task` that selects the watched tasks, as the function `wants` does for progress
    steps."""


async def watch_both(request: Request, subject: Subject) -> AsyncIterator[bytes]:
    """Yield the messages of a watch: the progress that `work.progress` stores for the subject's tasks, then the
    subject's events with new progress between them.
    """
    async with hub_of(request).box(subject.node, subject.wants) as box:
        async with plane_of(request).engine.connect() as conn:
            box.put(await newest_of(conn, subject.which))
        chunks = watch(feed_of(request), subject.after, subject.pick, credential_of(request))
        async for piece in with_progress(chunks, box):
            yield piece


async def with_progress(chunks: AsyncIterator[bytes], box: Mailbox) -> AsyncIterator[bytes]:
    """Yield the chunks of a stream of messages, with progress messages inserted between whole messages."""
    chunk, steps = asyncio.ensure_future(anext(chunks)), asyncio.ensure_future(box.news())
    between = True
    try:
        while True:
            await asyncio.wait({chunk, steps} if between else {chunk}, return_when=asyncio.FIRST_COMPLETED)
            if chunk.done():
                try:
                    piece = chunk.result()
                except StopAsyncIteration:
                    return
                yield piece
                # A long message consists of several chunks, and nothing may be inserted between them.
                between = piece.endswith(b"\n\n")
                chunk = asyncio.ensure_future(anext(chunks))
            elif steps.done():
                yield steps.result()
                steps = asyncio.ensure_future(box.news())
    finally:
        chunk.cancel()
        steps.cancel()
        await asyncio.gather(chunk, steps, return_exceptions=True)
