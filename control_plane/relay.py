"""Puts due orders on their nodes' queues: the one road from the ledger to Redis, for the first send and every other.

Sending is idempotent per order id: an order that waits, or is with a worker that lives, is left where it is;
one whose worker is dead goes back to the head of its queue. So the sweeper asks for the same thing as the dispatcher,
and a crash between a commit and a send, or in the middle of many, is mended by sending again.

Queues are bounded. A full or spoilt queue is the answer for its own node's orders only. Every method raises
`RedisAway`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from control_plane.redis_nodes import Command, RedisAway, answers, ensure_scripts
from events.values import NodeId
from tasks.failpoints import failpoint
from tasks.scripts import ENQUEUE, STRANDED, WITHDRAW, QueueKeys, Script, namespace_of

MAX_DEPTH: Final = 256
WORKER_TIMEOUT: Final = 15.0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An order to send: whose it is, its id, and its bytes (`tasks.wire.encode_order`)."""

    node_id: NodeId
    order_id: UUID
    message: bytes


@dataclass(frozen=True, slots=True)
class Enqueued:
    """New on the queue, which now has `depth` orders, in flight ones included."""

    depth: int


@dataclass(frozen=True, slots=True)
class Requeued:
    """Back on the queue, since `worker`, which had it, is dead."""

    worker: str


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """With the living `worker`, or waiting if there is none."""

    worker: str | None


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The node has `depth` orders it is not done with, and gets no more for now."""

    depth: int


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Redis refused: its memory is full, or the node put something else under its queue's keys."""

    reason: str


Outcome = Enqueued | Requeued | AlreadyThere | QueueFull | NotTaken


@dataclass(frozen=True, slots=True)
class Depth:
    waiting: int
    in_flight: int


class Relay:
    """Sends to every node's queue. `worker_timeout`, in seconds, is how long a silent worker keeps its orders."""

    def __init__(
        self, client: Redis, *, max_depth: int = MAX_DEPTH, worker_timeout: float = WORKER_TIMEOUT
    ) -> None:
        self._client = client
        self._max_depth = max_depth
        self._timeout = int(worker_timeout * 1000)

    async def enqueue(self, node_id: NodeId, order_id: UUID, message: bytes) -> Outcome:
        return (await self.enqueue_many([Outgoing(node_id, order_id, message)]))[0]

    ensure_queued = enqueue
    """The sweeper's name for the same thing."""

    async def enqueue_many(self, orders: Sequence[Outgoing]) -> tuple[Outcome, ...]:
        """One outcome per order, in their order."""
        failpoint("relay.sending")
        calls = [
            _call(ENQUEUE, order.node_id, str(order.order_id), order.message, self._max_depth, self._timeout)
            for order in orders
        ]
        outcomes = tuple(_outcome(answer) for answer in await self._run(calls))
        failpoint("relay.sent")
        return outcomes

    async def withdraw(self, node_id: NodeId, order_id: UUID) -> bool:
        """Take an order back. False: a living worker has it, and will settle it, or the node spoilt its keys."""
        [answer] = await self._run([_call(WITHDRAW, node_id, str(order_id), self._timeout)])
        return answer in {b"withdrawn", b"absent"}

    async def stranded(self, node_ids: Sequence[NodeId]) -> dict[NodeId, tuple[UUID, ...]]:
        """Orders whose worker is dead, by node. Those still due want `enqueue`, the others `withdraw`.

        No more of a node than its queue may hold: what else it says it holds was never sent.
        """
        found = await self._run([_call(STRANDED, node_id, self._timeout) for node_id in node_ids])
        return {
            node: orders
            for node, answer in zip(node_ids, found, strict=True)
            if (orders := _order_ids(answer)[: self._max_depth])
        }

    async def queue_depth(self, node_id: NodeId) -> Depth:
        keys = QueueKeys.of(namespace_of(node_id))
        waiting, in_flight = await answers(self._client, [("LLEN", keys.waiting), ("HLEN", keys.held)])
        return Depth(_known(waiting), _known(in_flight))

    async def _run(self, calls: list[Command]) -> list[Any]:
        found = await answers(self._client, calls)
        missing = [index for index, answer in enumerate(found) if isinstance(answer, NoScriptError)]
        if missing:
            # Redis restarted since anybody looked: the scripts are ours to load, and waiting would gain nothing.
            await ensure_scripts(self._client)
            again = await answers(self._client, [calls[index] for index in missing])
            for index, answer in zip(missing, again, strict=True):
                found[index] = answer
        return found


def _call(script: Script, node_id: NodeId, *args: str | bytes | int) -> Command:
    keys = QueueKeys.of(namespace_of(node_id)).all()
    return ("EVALSHA", script.sha, len(keys), *keys, *args)


def _outcome(answer: Any) -> Outcome:
    match answer:
        case [b"enqueued", int(depth)]:
            return Enqueued(depth)
        case [b"requeued", bytes(worker)]:
            return Requeued(_name(worker))
        case [b"in_flight", bytes(worker)]:
            return AlreadyThere(_name(worker))
        case [b"waiting", _]:
            return AlreadyThere(None)
        case [b"full", int(depth)]:
            return QueueFull(depth)
        case ResponseError():
            return NotTaken(f"{type(answer).__name__}: {answer}")
        case _:
            raise AssertionError(f"the script answers nothing like {answer!r}")


def _name(worker: bytes) -> str:
    return worker.decode(errors="backslashreplace")  # the node wrote it, and may have written anything


def _known(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise RedisAway(f"{type(answer).__name__}: {answer}") from answer
    return answer


def _order_ids(answer: Any) -> tuple[UUID, ...]:
    # A node may write what it likes under its own keys; what is no order id is no order of ours.
    found: list[UUID] = []
    for raw in answer if isinstance(answer, list) else ():
        try:
            found.append(UUID(raw.decode()))
        except ValueError:
            continue
    return tuple(found)
