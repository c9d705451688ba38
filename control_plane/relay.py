"""Puts due orders on their nodes' queues: the one road from the ledger to Redis, for the first send and every other.

Sending is idempotent per order id: an order that waits, or is with a worker that lives, is left where it is;
one whose worker is dead goes back to the head of its queue. So the sweeper asks for the same thing as the dispatcher,
and a crash between a commit and a send, or in the middle of many, is mended by sending again.

Queues are bounded. A full or spoilt queue is the answer for its own node's orders only. Every method raises
`RedisAway`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from control_plane.redis_nodes import Command, answers, ensure_scripts
from events.values import NodeId
from tasks.failpoints import failpoint
from tasks.scripts import ENQUEUE, STRANDED, WITHDRAW, WORKER_TIMEOUT, QueueKeys, Script, namespace_of

MAX_DEPTH: Final = 256


AT_ONCE: Final = 50
"""Orders that one script puts on their queues; nobody else is served meanwhile."""


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
    """With the living `worker`, or waiting if there is none. The worker is dead if silent for `patience` seconds
    more.
    """

    worker: str | None
    patience: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The node has `depth` orders it is not done with, and gets no more for now."""

    depth: int


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Redis refused: its memory is full, or the node put something else under its queue's keys."""

    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Neither in the queue nor with a living worker; only who looks is told so."""


class Stranded(NamedTuple):
    """Orders of dead workers by node, and whose queues hold more than was ever sent, which are not looked through."""

    orders: dict[NodeId, tuple[UUID, ...]]
    flooded: tuple[NodeId, ...]


Outcome = Enqueued | Requeued | AlreadyThere | QueueFull | NotTaken


class Withdrawal(Enum):
    """What became of an order that was to be taken back. `IN_FLIGHT`: a living worker has it, and will settle it.
    `SPOILT`: the node put something else under its queue's keys."""

    WITHDRAWN = "withdrawn"
    ABSENT = "absent"
    IN_FLIGHT = "in_flight"
    SPOILT = "spoilt"


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

    async def enqueue_many(self, orders: Sequence[Outgoing]) -> tuple[Outcome, ...]:
        """One outcome per order, in their order."""
        return tuple([_outcome(answer) for answer in await self._ask(orders)])

    async def look(self, orders: Sequence[tuple[NodeId, UUID]]) -> tuple[AlreadyThere | Gone | NotTaken, ...]:
        """Where orders are that were sent, without sending them again; one answer per order, in their order."""
        sought = [Outgoing(node_id, order_id, b"") for node_id, order_id in orders]
        return tuple([_where(answer) for answer in await self._ask(sought)])

    async def _ask(self, orders: Sequence[Outgoing]) -> list[Any]:
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
        """Take an order back, unless a living worker has it. Nobody gets it then, if it is not sent again."""
        failpoint("relay.withdrawing")
        [answer] = await self._run([_call(WITHDRAW, node_id, str(order_id), self._timeout)])
        failpoint("relay.withdrawn")
        return Withdrawal.SPOILT if isinstance(answer, ResponseError) else Withdrawal(answer.decode())

    async def stranded(self, node_ids: Sequence[NodeId]) -> Stranded:
        """Orders whose worker is dead. Those still due want `enqueue`, the others `withdraw`."""
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
    found = _where(answer)
    if not isinstance(found, Gone):
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
            raise AssertionError(f"the script answers nothing like {answer!r}")


def _where(answer: Any) -> AlreadyThere | Gone | NotTaken:
    if isinstance(answer, ResponseError):
        return NotTaken(f"{type(answer).__name__}: {answer}")
    word, _, detail = _words(answer)
    match word:
        case "in_flight":
            left, _, worker = detail.partition(" ")
            return AlreadyThere(worker, float(left) / 1000)
        case "waiting":
            return AlreadyThere(None)
        case "refused":
            return NotTaken(detail)
        case _:
            return Gone()


def _words(answer: bytes) -> tuple[str, str, str]:
    # A worker's name is the node's to choose, and it may have written anything.
    return answer.decode(errors="backslashreplace").partition(" ")


def _order_ids(answer: Any) -> tuple[UUID, ...]:
    # A node may write what it likes under its own keys; what is no order id is no order of ours.
    found: list[UUID] = []
    for raw in answer if isinstance(answer, list) else ():
        try:
            found.append(UUID(raw.decode()))
        except ValueError:
            continue
    return tuple(found)
