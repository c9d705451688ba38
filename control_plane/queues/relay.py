"""The relay puts tasks on their nodes' queues: the only path to Redis, for the first send and for resends.

Sending is idempotent per order id: an order that waits, or that a live worker has in flight, stays where it is; an
order that a dead worker has in flight returns to the head of its queue. So a crash between a commit and a send, or in
the middle of a batch, is repaired by sending again.

Queues are bounded. A full or corrupted queue affects only the orders of its own node. Every method raises
`RedisUnavailable`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from control_plane.queues.redis_nodes import Command, answers, ensure_scripts
from events.values import NodeId
from tasks.failpoints import failpoint
from tasks.scripts import ENQUEUE, STRANDED, WITHDRAW, WORKER_TIMEOUT, QueueKeys, Script, namespace_of

MAX_DEPTH: Final = 256


AT_ONCE: Final = 50
"""Maximum number of orders in one call of the Redis script; Redis serves no other client during a call."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An order to send: its node, its id, and its bytes (`tasks.wire.encode_order`)."""

    node_id: NodeId
    order_id: UUID
    message: bytes


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The order was added to the queue, which now holds `depth` orders, including those in flight."""

    depth: int


@dataclass(frozen=True, slots=True)
class Requeued:
    """The order is back on the queue, because `worker`, which had it in flight, is dead."""

    worker: str


@dataclass(frozen=True, slots=True)
class AlreadyQueued:
    """The order was on the queue already: a live `worker` has it in flight, or it waits if `worker` is None. The worker
    counts as dead if it sends no heartbeat for `seconds_left` more seconds.
    """

    worker: str | None
    seconds_left: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The node's queue already holds `depth` unfinished orders, and gets no more for now."""

    depth: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """Redis refused the order: its memory is full, or the node wrote foreign data under its queue's keys."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotQueued:
    """Outcome that only `look` returns: the order is neither in the queue nor in flight."""


class Stranded(NamedTuple):
    """Orders that dead workers hold, by node, and the nodes with queues that are too large to search."""

    orders: dict[NodeId, tuple[UUID, ...]]
    flooded: tuple[NodeId, ...]


Outcome = Enqueued | Requeued | AlreadyQueued | QueueFull | Rejected


class Withdrawal(Enum):
    """The result of withdrawing an order. `ABSENT`: the order was not in the queue. `IN_FLIGHT`: a live worker has the
    order and will finish it. `SPOILT`: the node wrote foreign data under its queue's keys.
    """

    WITHDRAWN = "withdrawn"
    ABSENT = "absent"
    IN_FLIGHT = "in_flight"
    SPOILT = "spoilt"


class Relay:
    """Sends orders to the nodes' queues. A worker without heartbeat for `worker_timeout` seconds counts as dead."""

    def __init__(
        self, client: Redis, *, max_depth: int = MAX_DEPTH, worker_timeout: float = WORKER_TIMEOUT
    ) -> None:
        self._client = client
        self._max_depth = max_depth
        self._timeout = int(worker_timeout * 1000)

    async def enqueue(self, node_id: NodeId, order_id: UUID, message: bytes) -> Outcome:
        """Put one order on its node's queue, unless it is already there."""
        return (await self.enqueue_many([Outgoing(node_id, order_id, message)]))[0]

    async def enqueue_many(self, orders: Sequence[Outgoing]) -> tuple[Outcome, ...]:
        """Put orders on their nodes' queues; return one outcome per order, in the given sequence."""
        return tuple([_outcome(answer) for answer in await self._enqueue_or_find(orders)])

    async def look(
        self, orders: Sequence[tuple[NodeId, UUID]]
    ) -> tuple[AlreadyQueued | NotQueued | Rejected, ...]:
        """Return whether orders are queued or in flight, without resending them.

        The result has one entry per order, in the given sequence.
        """
        sought = [Outgoing(node_id, order_id, b"") for node_id, order_id in orders]
        return tuple([_where(answer) for answer in await self._enqueue_or_find(sought)])

    async def _enqueue_or_find(self, orders: Sequence[Outgoing]) -> list[Any]:
        chunks = [orders[start : start + AT_ONCE] for start in range(0, len(orders), AT_ONCE)]
        failpoint("relay.sending")
        answers = await self._run([self._enqueue(chunk) for chunk in chunks])
        failpoint("relay.sent")
        return [
            answer
            for chunk, answered in zip(chunks, answers, strict=True)
            for answer in ([answered] * len(chunk) if isinstance(answered, ResponseError) else answered)
        ]

    def _enqueue(self, chunk: Sequence[Outgoing]) -> Command:
        keys = [key for order in chunk for key in QueueKeys.of(namespace_of(order.node_id)).all()]
        words = [word for order in chunk for word in (str(order.order_id), order.message)]
        return ("EVALSHA", ENQUEUE.sha, len(keys), *keys, self._max_depth, self._timeout, *words)

    async def withdraw(self, node_id: NodeId, order_id: UUID) -> Withdrawal:
        """Remove an order from the queue, unless a live worker has it in flight. Only a resend can bring it back."""
        failpoint("relay.withdrawing")
        [answer] = await self._run([_call(WITHDRAW, node_id, str(order_id), self._timeout)])
        failpoint("relay.withdrawn")
        return Withdrawal.SPOILT if isinstance(answer, ResponseError) else Withdrawal(answer.decode())

    async def stranded(self, node_ids: Sequence[NodeId]) -> Stranded:
        """Return orders that dead workers hold. The caller then calls `enqueue` for the orders that are still due, and
        `withdraw` for all others.
        """
        calls = [_call(STRANDED, node_id, self._max_depth, self._timeout) for node_id in node_ids]
        found = [*zip(node_ids, await self._run(calls), strict=True)]
        return Stranded(
            {node: orders for node, answer in found if (orders := _order_ids(answer))},
            tuple([node for node, answer in found if answer == b"flooded"]),
        )

    async def _run(self, calls: list[Command]) -> list[Any]:
        found = await answers(self._client, calls)
        missing = [index for index, answer in enumerate(found) if isinstance(answer, NoScriptError)]
        if missing:
            # Redis restarted: load the scripts and retry at once, because nothing is gained by waiting.
            await ensure_scripts(self._client)
            again = await answers(self._client, [calls[index] for index in missing])
            for index, answer in zip(missing, again, strict=True):
                found[index] = answer
        return found


def _call(script: Script, node_id: NodeId, *args: str | bytes | int) -> Command:
    keys = QueueKeys.of(namespace_of(node_id)).all()
    return ("EVALSHA", script.sha, len(keys), *keys, *args)


def _outcome(answer: Any) -> Outcome:
    found = _where(answer)
    if not isinstance(found, NotQueued):
        return found
    word, _, detail = _words(answer)
    match word:
        case "enqueued":
            return Enqueued(int(detail))
        case "requeued":
            return Requeued(detail)
        case "full":
            return QueueFull(int(detail))
        case _:
            raise AssertionError(
                f"the Redis script that enqueues a task returned an unexpected answer: {answer!r}"
            )


def _where(answer: Any) -> AlreadyQueued | NotQueued | Rejected:
    if isinstance(answer, ResponseError):
        return Rejected(f"{type(answer).__name__}: {answer}")
    word, _, detail = _words(answer)
    match word:
        case "in_flight":
            left, _, worker = detail.partition(" ")
            return AlreadyQueued(worker, float(left) / 1000)
        case "waiting":
            return AlreadyQueued(None)
        case "refused":
            return Rejected(detail)
        case _:
            return NotQueued()


def _words(answer: bytes) -> tuple[str, str, str]:
    # The node chooses a worker's name, so it may contain any bytes.
    return answer.decode(errors="backslashreplace").partition(" ")


def _order_ids(answer: Any) -> tuple[UUID, ...]:
    # A node may write anything under its own keys; entries that are not order ids are skipped.
    found: list[UUID] = []
    for raw in answer if isinstance(answer, list) else ():
        try:
            found.append(UUID(raw.decode()))
        except ValueError:
            continue
    return tuple(found)
