"""The execution time that each node uses in Redis, measured by samples of the executed commands.

Redis does not count time by user. While Redis is busy, its slow log records every command for a moment: up to 1,024
commands, each with its duration. A command counts for the node to which its first key belongs, since Redis refuses a
node the keys of other nodes; a command without a key counts for the user of its connection. Commands that a node may
not run are counted in the log of denied commands. Functions that query Redis raise `RedisUnavailable`.
"""

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from control_plane.queues.redis_nodes import Command, RedisUnavailable, answers, node_of_user
from events.values import NodeId
from tasks.scripts import NODE_COMMANDS, NODE_SCRIPTS

log = structlog.get_logger()
BUSY: Final = 0.05
"""Share of one processor, from 0 to 1: commands are sampled only while Redis uses more than this share, because a lower
usage does not delay other nodes for long."""
KEPT: Final = 0.9
"""Share of a node's accumulated Redis time that is carried over from one evaluation to the next, about a second
later."""
FLOOD_SECONDS: Final = 1.0
"""Accumulated Redis time of a node, in seconds, above which it floods Redis. Because older time counts less, a
constant usage of about 10 % reaches this limit. Agents use under 1 %.
"""
DENIED: Final = 100
"""Number of denied commands between two evaluations above which a node floods Redis; an agent sends none."""
_SAMPLE: Final = 1024
_SAMPLE_SECONDS: Final = 0.02
_TURN_SECONDS: Final = 0.9
_FORGOTTEN_SECONDS: Final = 0.01
_OVERHEAD_USEC: Final = 1
"""Minimum time in microseconds for reading a command and writing its answer, in addition to its execution."""
_OWN_SCRIPTS: Final = frozenset(script.sha.encode() for script in NODE_SCRIPTS)
_COMMANDS: Final = frozenset(name.partition("|")[0].encode() for name in NODE_COMMANDS)
_NODE_KEY: Final = re.compile(rb"ctl:([^:]+):")
_CLIENT: Final = re.compile(rb"^id=\d+ addr=(\S+) .*? user=(\S+)", re.MULTILINE)
_USUAL: Final = (b"10000", b"128")
"""Redis' default settings of the slow log: its threshold in microseconds and its length in entries."""


class Sample(NamedTuple):
    """Evaluation of the commands that Redis executed in a period. `busy` is the share of the period in which Redis
    executed commands, and `shares` the share of this execution time that each node used. All shares are from 0 to 1.
    """

    busy: float
    shares: Mapping[NodeId, float]


@dataclass(slots=True)
class TimeWatch:
    """Measures the Redis time that each node uses. Call `look` regularly; it evaluates at most once in 0.9 s."""

    redis: Redis
    _cpu: float = math.inf
    _at: float = 0.0
    _judging: bool = False
    _usual: tuple[bytes, bytes] | None = None
    _used: dict[NodeId, float] = field(default_factory=dict)

    async def look(self, cpu_seconds: float) -> Mapping[NodeId, str]:
        """Return the nodes that flood Redis, each with the reason: a node uses far more Redis time than its work needs,
        or it sends many denied commands.

        `cpu_seconds` is the processor time that Redis used since it started.
        """
        now = asyncio.get_running_loop().time()
        spent, seconds = cpu_seconds - self._cpu, now - self._at
        if 0 <= seconds < _TURN_SECONDS and spent >= 0:
            return {}
        self._cpu, self._at = cpu_seconds, now
        self._used = {
            node: used for node, each in self._used.items() if (used := each * KEPT) > _FORGOTTEN_SECONDS
        }
        if not BUSY * seconds <= spent <= seconds + 1.0:
            # Redis is not busy, or it restarted since the previous turn.
            self._judging = False
            return {}
        floods = dict(await self._denied())
        sample = await self._sample()
        for node, share in sample.shares.items():
            self._used[node] = self._used.get(node, 0.0) + share * min(spent, sample.busy * seconds)
            if self._used[node] > FLOOD_SECONDS:
                floods[node] = (
                    f"the node used {self._used[node]:.1f} s of Redis processor time within a few seconds"
                )
                self._used[node] = 0.0
        return floods

    async def _denied(self) -> Mapping[NodeId, str]:
        """Return the nodes with more than `DENIED` denied commands since the previous evaluation, each with the reason.

        If Redis was not busy at the previous evaluation, the log of denied commands was not emptied and may contain
        older entries; in that case, return an empty mapping.
        """
        denied, _ = await answers(self.redis, [("ACL", "LOG", 128), ("ACL", "LOG", "RESET")])
        judging, self._judging = self._judging, True
        if not judging or isinstance(denied, ResponseError):
            return {}
        counts = denied_of([_pairs(each) for each in denied])
        return {node: f"{times} denied commands" for node, times in counts.items() if times > DENIED}

    async def _sample(self) -> Sample:
        if self._usual is None:
            self._usual = await self._settings()
        everything: list[Command] = [
            ("CONFIG", "SET", "slowlog-max-len", _SAMPLE),
            ("CONFIG", "SET", "slowlog-log-slower-than", 0),
        ]
        threshold, length = self._usual
        as_before: list[Command] = [
            ("CONFIG", "SET", "slowlog-log-slower-than", threshold),
            ("SLOWLOG", "GET", _SAMPLE),
            ("SLOWLOG", "RESET"),
            ("CONFIG", "SET", "slowlog-max-len", length),
        ]
        refusals = [each for each in await answers(self.redis, everything) if isinstance(each, ResponseError)]
        if refusals:
            log.warning("redis_slowlog_sampling_refused", reason=str(refusals[0]))
            return Sample(0.0, {})
        began = time.monotonic()
        try:
            await asyncio.sleep(_SAMPLE_SECONDS)
        finally:
            [_, entries, *_] = await answers(self.redis, as_before)
        if isinstance(entries, ResponseError):
            raise RedisUnavailable(str(entries))
        # Only commands without a key need the users of connections, a list of up to ten thousand entries.
        keyless = sum(bytes(entry[3][0]).lower() in _COMMANDS and not _node(entry, {}) for entry in entries)
        users = await self._users() if keyless > len(entries) * BUSY else {}
        return sample_of(entries, users, time.monotonic() - began)

    async def _settings(self) -> tuple[bytes, bytes]:
        """Return the settings of Redis' slow log that are to be restored after a sample.

        A threshold of 0 microseconds remains after a crash during a sample; the default threshold replaces it.
        """
        [answer] = await answers(self.redis, [("CONFIG", "GET", "slowlog-*")])
        found = {} if isinstance(answer, ResponseError) else dict(_pairs(answer))
        usual_threshold, usual_length = _USUAL
        threshold = found.get(b"slowlog-log-slower-than", usual_threshold)
        return (
            usual_threshold if threshold == b"0" else threshold,
            found.get(b"slowlog-max-len", usual_length),
        )

    async def _users(self) -> Mapping[bytes, NodeId]:
        """Return the nodes that are connected to Redis, by the client address of each of their connections."""
        [listed] = await answers(self.redis, [("CLIENT", "LIST")])
        if isinstance(listed, ResponseError):
            raise RedisUnavailable(str(listed))
        found = ((address, node_of_user(user.decode())) for address, user in _CLIENT.findall(listed))
        return {address: node for address, node in found if node is not None}


def sample_of(entries: Sequence[Sequence[Any]], users: Mapping[bytes, NodeId], seconds: float) -> Sample:
    """Return the time that each node used of Redis, from the entries of the slow log of the last `seconds`. `users`
    maps addresses of clients to nodes.
    """
    spent = Counter[NodeId | None]()
    for entry in entries:
        spent[_node(entry, users)] += int(entry[2]) + _OVERHEAD_USEC
    total = max(1, spent.total())
    # A full log holds only the last commands: they took less time than `seconds`, and Redis was busy throughout.
    busy = 1.0 if len(entries) >= _SAMPLE else min(1.0, total / 1e6 / seconds)
    return Sample(busy, {node: used / total for node, used in spent.items() if node is not None})


def _node(entry: Sequence[Any], users: Mapping[bytes, NodeId]) -> NodeId | None:
    """Return the node that sent the command in a slow log entry, or None if the control plane sent it."""
    words: Sequence[bytes] = entry[3]
    name = words[0].lower()
    if name == b"evalsha":
        key = b"".join(words[3:4]) if words[1] in _OWN_SCRIPTS else b""
    else:
        key = b"".join(words[1:2]) if name in _COMMANDS else b""
    found = _NODE_KEY.match(key)
    return NodeId(found[1].decode()) if found else users.get(entry[4])


def denied_of(entries: Sequence[Mapping[bytes, Any]]) -> Mapping[NodeId, int]:
    """Return how often Redis denied each node a command or a key, from entries of the log of denied commands (ACL LOG).

    Entries about wrong passwords are not counted, because any client can send a wrong password with the user name of a
    node.
    """
    found = Counter[NodeId]()
    for entry in entries:
        node = node_of_user(bytes(entry[b"username"]).decode(errors="replace"))
        if node is not None and entry[b"reason"] != b"auth":
            found[node] += int(entry[b"count"])
    return found


def _pairs(flat: Any) -> dict[bytes, Any]:
    """Return an answer of Redis that consists of names and values as a dictionary. Depending on the Redis client, the
    answer is a flat list or already a dictionary.
    """
    if isinstance(flat, Mapping):
        return {_bytes(name): value for name, value in flat.items()}
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _bytes(name: str | bytes) -> bytes:
    return name.encode() if isinstance(name, str) else name
