"""What queues weigh in Redis, who is connected to it, and how much of either is a flood.

A queue holds at most `MAX_DEPTH` messages, and its other keys an entry for each of them; a node has two connections.
The bounds lie well above that. A weight is exact for as many entries as work could bring, and beyond that their number
says enough, so asking costs microseconds however much the node wrote. What asks Redis raises `RedisAway`.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from control_plane.redis_nodes import RedisAway, answers, node_of_user
from control_plane.relay import MAX_DEPTH
from events.values import NodeId
from tasks.catalogue import CATALOGUE
from tasks.scripts import MOST_WORDS, NODE_COMMANDS, WEIGH, QueueKeys, namespace_of
from tasks.wire import sealed_bytes

KEPT_CONNECTIONS: Final = 8
"""Of a node; the others, which a broken network may have left behind, are older and end."""
FLOOD_CONNECTIONS: Final = 256
STRANGER_SECONDS: Final = 10
"""How long somebody may be connected and show no password."""
_LARGEST: Final = max(map(sealed_bytes, CATALOGUE)) * 5 // 4
"""Bytes of a message in Redis, whose allocator rounds up."""
_SLOW: Final = 128
"""As many entries as that log has by default."""
_OF_NODE: Final = re.compile(rb"ctl:([^:]+):")
_MORE: Final = re.compile(rb"\.\.\. \((\d+) more arguments\)")
_CLIENT: Final = re.compile(rb"^id=(\d+) .*? age=(\d+) .*? tot-mem=(\d+) .*? user=(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes of memory that a queue's keys take, and the entries of the longest of them."""

    bytes: int
    entries: int

    def exceeds(self, bound: "Weight") -> bool:
        return self.bytes > bound.bytes or self.entries > bound.entries


FLOOD: Final = Weight(2 * MAX_DEPTH * _LARGEST, 4 * MAX_DEPTH)
SWELLING: Final = Weight(FLOOD.bytes // 2, FLOOD.entries // 2)
"""Not to be explained by work either."""


async def weights(client: Redis, node_ids: Sequence[NodeId]) -> Mapping[NodeId, Weight]:
    """What the queues of these nodes weigh. Of which Redis says nothing, for want of the script, are left out."""
    keys = [QueueKeys.of(namespace_of(node_id)).all() for node_id in node_ids]
    found = await answers(client, [("EVALSHA", WEIGH.sha, len(each), *each) for each in keys])
    told = [each for each in zip(node_ids, found, strict=True) if not isinstance(each[1], ResponseError)]
    return {node_id: Weight(*answer) for node_id, answer in told}


async def wordy(client: Redis) -> Mapping[NodeId, int]:
    """Who said more words in one command than work could bring, and how many; each is told once.

    Redis carries a command out whole, and everybody waits: a million words, each of which names nothing, take it
    seconds and leave nothing behind. They stand in the log of what took it long, which is emptied then.
    """
    [slow] = await answers(client, [("SLOWLOG", "GET", _SLOW)])
    if isinstance(slow, ResponseError):
        raise RedisAway(str(slow))
    said = [(_whose(entry[3]), len(entry[3]) - 1 + _left_out(entry[3][-1])) for entry in slow]
    found = {node: words for node, words in said if node is not None and words > MOST_WORDS}
    if found:
        await answers(client, [("SLOWLOG", "RESET")])
    return found


def _whose(command: Sequence[bytes]) -> NodeId | None:
    """By the command's first key, which was checked against the rights of who said it, unlike the rest of it."""
    name = command[0].lower().decode(errors="replace")
    if name not in NODE_COMMANDS or (name == "evalsha" and command[2].strip() == b"0"):
        return None
    at = 3 if name == "evalsha" else 1
    found = _OF_NODE.match(command[at]) if len(command) > at else None
    return NodeId(found[1].decode()) if found else None


def _left_out(last: bytes) -> int:
    """Of a long command the log has the first words, and how many more there were."""
    found = _MORE.fullmatch(last)
    return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to Redis: its number, the user that it is, its age in seconds, and the memory that it takes."""

    number: int
    user: str
    age: int
    bytes: int


async def connections(client: Redis) -> list[Connection]:
    """Everybody who is connected, oldest first."""
    # In two words: for "CLIENT LIST" redis-py makes a dictionary of each line, of which there may be ten thousand.
    [listed] = await answers(client, [("CLIENT", "LIST")])
    if isinstance(listed, ResponseError):
        raise RedisAway(str(listed))
    lines = _CLIENT.findall(listed)
    found = [Connection(int(number), user.decode(), int(age), int(size)) for number, age, size, user in lines]
    return sorted(found, key=lambda each: each.number)


async def is_password_asked(client: Redis) -> bool:
    """Whether who shows none is nobody: where Redis' default user is on, whoever logged in as it looks the same."""
    [told] = await answers(client, [("ACL", "GETUSER", "default")])
    if isinstance(told, ResponseError):
        raise RedisAway(str(told))
    return b"off" in told[b"flags"]


@dataclass(frozen=True, slots=True)
class Crowd:
    """Connections, judged: which are to end, which nodes flood and how, and how many of the others there are."""

    ended: Sequence[int]
    floods: Mapping[NodeId, str]
    usual: int


def crowd_of(found: Sequence[Connection], *, password_asked: bool = True) -> Crowd:
    """Of connections, oldest first: a node keeps its newest, and who shows no password for long keeps none."""
    strangers = [each for each in found if password_asked and each.user == "default"]
    of_nodes = defaultdict[NodeId, list[Connection]](list)
    for each in found:
        if (node := node_of_user(each.user)) is not None:
            of_nodes[node].append(each)
    surplus = [each for own in of_nodes.values() for each in own[:-KEPT_CONNECTIONS]]
    overdue = [each for each in strangers if each.age > STRANGER_SECONDS]
    floods = {node: why for node, own in of_nodes.items() if (why := _flood(own))}
    return Crowd(
        [each.number for each in (*surplus, *overdue)], floods, len(found) - len(surplus) - len(strangers)
    )


def _flood(own: Sequence[Connection]) -> str | None:
    size = sum(each.bytes for each in own)
    flood = len(own) > FLOOD_CONNECTIONS or size > FLOOD.bytes
    return f"{len(own)} connections, which take {size} bytes" if flood else None
