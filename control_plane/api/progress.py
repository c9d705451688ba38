"""Progress, from nodes to whoever watches an allocation or a task, on whatever process of the API.

A process listens to Redis only while somebody watches here, and only to the nodes concerned: idle allocations cost
nothing. Each watcher has a letter box with the newest step of each task; one that does not read finds fewer steps, and
delays nobody. In its stream a step is a message `progress` without an id, so that `Last-Event-ID` stays a place in the
ledger.
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

from control_plane.api.access import CallingNode
from control_plane.api.problems import PROBLEMS
from control_plane.api.state import feed_of, plane_of
from control_plane.api.watch import watch
from control_plane.outage import REDIS_AWAY, rest
from control_plane.progress import Step, channel_of, keep, newest_of, spread
from events.search import Pick
from events.values import NodeId, Position
from tasks.agent_api import ProgressBatch

log = structlog.get_logger()
router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS)
AGAIN_SECONDS: Final = 1.0
_STEPS: Final = msgspec.json.Decoder(list[Step])


@router.post("/progress", status_code=204)
async def progress(request: Request, node: CallingNode, body: ProgressBatch) -> None:
    """Say how far the node is with its orders. It is no fact: told once or not at all."""
    plane = plane_of(request)
    async with plane.engine.begin() as conn:
        steps = await keep(conn, node, body.progress)
    if steps:
        await spread(plane.redis, node, steps)


class LetterBox:
    """The newest step of each task that a watcher wants, until it looks."""

    def __init__(self, wants: Callable[[Step], bool]) -> None:
        self._wants = wants
        self._new: dict[str, Step] = {}
        self._came = asyncio.Event()

    def put(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if self._wants(step):
                self._new[step.task_id] = step
                self._came.set()

    async def news(self) -> bytes:
        """Wait for steps; as messages of a stream."""
        await self._came.wait()
        self._came.clear()
        found, self._new = self._new, {}
        return b"".join(
            b"event: progress\ndata: " + msgspec.json.encode(step) + b"\n\n" for step in found.values()
        )


class Hub:
    """The letter boxes of a process, by node, and its one subscription. `run` it beside the application."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._boxes: defaultdict[NodeId, set[LetterBox]] = defaultdict(set)
        self._wanted = asyncio.Event()
        self._subscription: PubSub | None = None

    @contextlib.asynccontextmanager
    async def box(self, node: NodeId, wants: Callable[[Step], bool]) -> AsyncIterator[LetterBox]:
        """A letter box for what a node tells, for as long as the block lasts."""
        box = LetterBox(wants)
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
        """Listen while anybody watches; runs until cancelled and outlives Redis."""
        while True:
            await self._wanted.wait()
            try:
                await self._listen()
            except REDIS_AWAY as error:
                log.info("progress_subscription_lost", error=str(error))
                await rest(AGAIN_SECONDS)
            finally:
                self._subscription = None

    async def _listen(self) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as subscription:
            if begun := set(self._boxes):
                await subscription.subscribe(*map(channel_of, begun))
            self._subscription = subscription
            if come := set(self._boxes) - begun:  # while we waited, and nobody could subscribe
                await subscription.subscribe(*map(channel_of, come))
            while self._boxes:
                message = await subscription.get_message(timeout=AGAIN_SECONDS)
                if message is not None:
                    self._deliver(message)
            # Before anything is awaited: who comes from here on sets it again.
            self._wanted.clear()
            self._subscription = None

    def _deliver(self, message: dict[str, bytes]) -> None:
        node = NodeId(message["channel"].decode().partition(":")[2])
        try:
            steps = _STEPS.decode(message["data"])
        except msgspec.DecodeError as error:
            # While a release is rolled out, another may write what we cannot read; it is only a line on a screen.
            log.info("progress_not_understood", node=node, error=str(error))
            return
        for box in self._boxes.get(node, ()):
            box.put(steps)

    async def _change(self, node: NodeId, *, wanted: bool) -> None:
        subscription = self._subscription
        if subscription is None:
            return  # whoever makes it asks for all that is wanted then
        change = subscription.subscribe if wanted else subscription.unsubscribe
        # Lost, the connection is made again by `run`, for all that is wanted then.
        with contextlib.suppress(*REDIS_AWAY):
            await change(channel_of(node))


def hub_of(request: Request) -> Hub:
    return cast(Hub, request.app.state.hub)


@dataclass(frozen=True, slots=True)
class Subject:
    """What somebody watches: its events behind a place, and the progress of orders of one node."""

    pick: Pick
    after: Position
    node: NodeId
    wants: Callable[[Step], bool]
    which: sa.ColumnElement[bool]
    """The same orders as `wants`, as rows of `work.task`."""


async def watch_both(request: Request, subject: Subject) -> AsyncIterator[bytes]:
    """Events as in every watch, and progress between them: first the newest there is."""
    async with hub_of(request).box(subject.node, subject.wants) as box:
        async with plane_of(request).engine.connect() as conn:
            box.put(await newest_of(conn, subject.which))
        async for piece in with_progress(watch(feed_of(request), subject.after, subject.pick), box):
            yield piece


async def with_progress(chunks: AsyncIterator[bytes], box: LetterBox) -> AsyncIterator[bytes]:
    """A stream of whole messages, in which those of progress are put between others."""
    chunk, told = asyncio.ensure_future(anext(chunks)), asyncio.ensure_future(box.news())
    between = True
    try:
        while True:
            await asyncio.wait({chunk, told} if between else {chunk}, return_when=asyncio.FIRST_COMPLETED)
            if chunk.done():
                try:
                    piece = chunk.result()
                except StopAsyncIteration:
                    return
                yield piece
                # A long message comes in several pieces, and nothing may come between them.
                between = piece.endswith(b"\n\n")
                chunk = asyncio.ensure_future(anext(chunks))
            elif told.done():
                yield told.result()
                told = asyncio.ensure_future(box.news())
    finally:
        chunk.cancel()
        told.cancel()
        await asyncio.gather(chunk, told, return_exceptions=True)
