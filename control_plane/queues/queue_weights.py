"""Sizes of nodes' queues in Redis, nodes' connections to Redis, and the limits above which a node floods Redis.

A queue holds at most `MAX_DEPTH` messages, and each of its other keys at most one entry per message. A node needs two
connections. The limits are well above these numbers. The size in bytes is exact for as many entries as real work can
create; beyond that only the entries are counted, so a measurement takes microseconds however much the node wrote.
Functions that query Redis raise `RedisUnavailable`.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from control_plane.queues.redis_nodes import RedisUnavailable, answers, node_of_user
from control_plane.queues.relay import MAX_DEPTH
from events.values import NodeId
from tasks.catalogue import CATALOGUE
from tasks.scripts import MAX_ARGUMENTS, NODE_COMMANDS, WEIGH, QueueKeys, namespace_of
from tasks.wire import sealed_bytes

KEPT_CONNECTIONS: Final = 8
"""Number of connections that a node keeps; older ones, which a broken network may have left behind, are ended."""
FLOOD_CONNECTIONS: Final = 256
UNAUTHENTICATED_SECONDS: Final = 10
"""How long a client may stay connected without a password."""
_LARGEST: Final = max(map(sealed_bytes, CATALOGUE)) * 5 // 4
"""Size in bytes of the largest message in Redis, including the overhead of its allocator."""
_SLOW: Final = 128
"""Number of entries in Redis' slow log by default."""
_NODE_KEY: Final = re.compile(rb"ctl:([^:]+):")
_MORE: Final = re.compile(rb"\.\.\. \((\d+) more arguments\)")
_CLIENT: Final = re.compile(rb"^id=(\d+) .*? age=(\d+) .*? tot-mem=(\d+) .*? user=(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Weight:
    """Memory of a queue's keys in bytes, and the number of entries of the longest key."""

    bytes: int
    entries: int

    def exceeds(self, bound: "Weight") -> bool:
        """Return whether the bytes or the entries of a queue exceed those of `bound`."""
        return self.bytes > bound.bytes or self.entries > bound.entries


FLOOD: Final = Weight(2 * MAX_DEPTH * _LARGEST, 4 * MAX_DEPTH)
NEARLY_FLOODED: Final = Weight(FLOOD.bytes // 2, FLOOD.entries // 2)
"""Half of the limit `FLOOD`. Ordinary work does not reach this size either, so it is logged as a warning."""


async def weights(client: Redis, node_ids: Sequence[NodeId]) -> Mapping[NodeId, Weight]:
    """Return the sizes of these nodes' queues, except queues on which Redis refused to run the measuring script."""
    keys = [QueueKeys.of(namespace_of(node_id)).all() for node_id in node_ids]
    found = await answers(client, [("EVALSHA", WEIGH.sha, len(each), *each) for each in keys])
    known = [each for each in zip(node_ids, found, strict=True) if not isinstance(each[1], ResponseError)]
    return {node_id: Weight(*answer) for node_id, answer in known}


async def senders_of_long_commands(client: Redis) -> Mapping[NodeId, int]:
    """Return the nodes that sent a Redis command with too many words since the last call, each with the number of
    words.

    Redis executes a command as a whole while every client waits: a command with a million words that name no existing
    key takes seconds and leaves no data behind. Such commands are in the slow log, which is reset after they were
    found.
    """
    [slow] = await answers(client, [("SLOWLOG", "GET", _SLOW)])
    if isinstance(slow, ResponseError):
        raise RedisUnavailable(str(slow))
    sent = [(_sender(entry[3]), len(entry[3]) - 1 + _left_out(entry[3][-1])) for entry in slow]
    found = {node: words for node, words in sent if node is not None and words > MAX_ARGUMENTS}
    if found:
        await answers(client, [("SLOWLOG", "RESET")])
    return found


def _sender(command: Sequence[bytes]) -> NodeId | None:
    """Return the node that sent a Redis command, from the command's first key; None if no node's key is found there.

    Redis executes a command only if the sender has rights on this key, so the key identifies the sender.
    """
    name = command[0].lower().decode(errors="replace")
    if name not in NODE_COMMANDS or (name == "evalsha" and command[2].strip() == b"0"):
        return None
    at = 3 if name == "evalsha" else 1
    found = _NODE_KEY.match(command[at]) if len(command) > at else None
    return NodeId(found[1].decode()) if found else None


def _left_out(last: bytes) -> int:
    """Return how many words the slow log omitted from a long command, as the last logged word states, or 0."""
    found = _MORE.fullmatch(last)
    return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to Redis: its number, user name, age in seconds, and memory in bytes."""

    number: int
    user: str
    age: int
    bytes: int


async def connections(client: Redis) -> list[Connection]:
    """Return every connection to Redis, oldest first."""
    # Two words: for "CLIENT LIST" redis-py builds a dictionary per line, and there may be ten thousand lines.
    [listed] = await answers(client, [("CLIENT", "LIST")])
    if isinstance(listed, ResponseError):
        raise RedisUnavailable(str(listed))
    lines = _CLIENT.findall(listed)
    found = [Connection(int(number), user.decode(), int(age), int(size)) for number, age, size, user in lines]
    return sorted(found, key=lambda each: each.number)


async def requires_password(client: Redis) -> bool:
    """Return whether Redis requires a password, which is so if its default user is disabled.

    If the default user is enabled, connections of that user cannot be identified as unauthenticated.
    """
    [answer] = await answers(client, [("ACL", "GETUSER", "default")])
    if isinstance(answer, ResponseError):
        raise RedisUnavailable(str(answer))
    return b"off" in answer[b"flags"]


@dataclass(frozen=True, slots=True)
class ConnectionReview:
    """The evaluation of all Redis connections: those to end, and the nodes that flood Redis. `usual` is the number of
    authenticated connections within the limit of connections that each node may keep.
    """

    ended: Sequence[int]
    floods: Mapping[NodeId, str]
    usual: int


def review_connections(found: Sequence[Connection], *, password_required: bool = True) -> ConnectionReview:
    """Decide which Redis connections to end, and which nodes flood Redis with connections; `found` is oldest first.

    Each node keeps its newest `KEPT_CONNECTIONS` connections. A connection that is still unauthenticated after
    `UNAUTHENTICATED_SECONDS` is to be ended.
    """
    unauthenticated = [each for each in found if password_required and each.user == "default"]
    of_nodes = defaultdict[NodeId, list[Connection]](list)
    for each in found:
        if (node := node_of_user(each.user)) is not None:
            of_nodes[node].append(each)
    surplus = [each for own in of_nodes.values() for each in own[:-KEPT_CONNECTIONS]]
    overdue = [each for each in unauthenticated if each.age > UNAUTHENTICATED_SECONDS]
    floods = {node: reason for node, own in of_nodes.items() if (reason := _flood(own))}
    usual = len(found) - len(surplus) - len(unauthenticated)
    return ConnectionReview([each.number for each in (*surplus, *overdue)], floods, usual)


def _flood(own: Sequence[Connection]) -> str | None:
    size = sum(each.bytes for each in own)
    flood = len(own) > FLOOD_CONNECTIONS or size > FLOOD.bytes
    return f"the node has {len(own)} Redis connections, which use {size} bytes" if flood else None
