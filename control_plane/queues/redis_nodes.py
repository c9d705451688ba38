"""The users and scripts that nodes need in Redis. The control plane owns and restores both.

Redis keeps neither across a restart, and a flush also deletes the orders. So the last step of a restoration writes a
marker with the run id of the Redis process. If the marker is missing or has the run id of another process, something is
lost, and Redis is restored. This includes a crash during a restoration.

A node's user is named after the node, holds only the SHA-256 of passwords that the node created, and may run
`NODE_COMMANDS` on the keys of its own queue and nothing else. It holds two passwords, of the node's newest session and
of the one before, so that a node can reconnect at any moment of a renewal. Every function raises `RedisUnavailable`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import structlog
from redis.asyncio import Redis

from control_plane.outage import REDIS_UNAVAILABLE
from events.values import NodeId
from tasks.failpoints import failpoint
from tasks.scripts import ALL_SCRIPTS, NODE_COMMANDS, QueueKeys, namespace_of
from tasks.trust import why_untrusted

Command = tuple[str | bytes | int, ...]
MARKER: Final = "sliceplane:restored"
_PIPELINE: Final = 500

log = structlog.get_logger(__name__)


class RedisUnavailable(Exception):
    """Redis did not answer, or refused a command of the control plane. Earlier commands may have been executed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class NodeLogin:
    """A node's access to its queue: SHA-256 (hex) of its password, and of the previous one while that is valid."""

    node_id: NodeId
    password_sha256: str
    prior_sha256: str | None = None


class Loss(Enum):
    """What a Redis server has lost since it was last restored."""

    RESTARTED = "restarted"
    FLUSHED = "flushed"
    SCRIPTS = "scripts"


class Usage(NamedTuple):
    """Redis' usage: bytes of keys, bytes in connection buffers, number of connections, and processor seconds since
    start.
    """

    kept_bytes: int
    connection_bytes: int
    connections: int
    cpu_seconds: float


def user_name(node_id: NodeId) -> str:
    """Return the name of the node's Redis user."""
    return f"node-{node_id}"


def node_of_user(name: str) -> NodeId | None:
    """Return the node of a Redis user, or None if the user is not a node's."""
    node_id = name.removeprefix(user_name(NodeId("")))
    return NodeId(node_id) if node_id != name else None


async def ensure_scripts(client: Redis) -> None:
    """Load all queue scripts into Redis."""
    await _all(client, [("SCRIPT", "LOAD", script.source) for script in ALL_SCRIPTS])


async def ensure_node_users(client: Redis, logins: Sequence[NodeLogin]) -> None:
    """Set the rights and passwords of nodes' Redis users; former rights and passwords end. Existing connections stay
    open.
    """
    await _all(client, [_set_user(login) for login in logins])


async def end_connections(client: Redis, node_ids: Sequence[NodeId]) -> None:
    """End all connections of these nodes, so that each has to log in again.

    Redis checks a password only at login. Otherwise an agent on a copy of the node's disk that is already connected
    would continue to take the node's orders.
    """
    await _all(client, [("CLIENT", "KILL", "USER", user_name(node_id)) for node_id in node_ids])


async def end_connections_by_number(client: Redis, numbers: Sequence[int]) -> None:
    """End Redis connections by their numbers; connections that are already closed are ignored."""
    await answers(client, [("CLIENT", "KILL", "ID", number) for number in numbers])


async def delete_node_users(client: Redis, node_ids: Sequence[NodeId]) -> None:
    """Delete the nodes' users, which also ends their connections; messages in their queues stay."""
    await _all(client, [("ACL", "DELUSER", user_name(node_id)) for node_id in node_ids])


async def forget_queues(client: Redis, node_ids: Sequence[NodeId]) -> None:
    """Delete the queue keys of nodes that lost access or that flooded them. Queued orders are still open in the
    database.
    """
    keys = [QueueKeys.of(namespace_of(node_id)).all() for node_id in node_ids]
    await _all(client, [("UNLINK", *each) for each in keys])


async def usage(client: Redis) -> Usage:
    """Return Redis' current usage."""
    [info] = await _all(client, [("INFO",)])
    return Usage(
        info["used_memory_dataset"],
        info["mem_clients_normal"],
        info["connected_clients"],
        info["used_cpu_user"] + info["used_cpu_sys"],
    )


async def inspect(client: Redis) -> Loss | None:
    """Return what Redis has lost since `restore` last finished, or None if nothing is lost."""
    marker, info, *loaded = await _all(
        client,
        [("GET", MARKER), ("INFO", "server"), ("SCRIPT", "EXISTS", *(script.sha for script in ALL_SCRIPTS))],
    )
    if marker is None:
        return Loss.FLUSHED
    if marker != _run_id(info):
        return Loss.RESTARTED
    return None if all(loaded[0]) else Loss.SCRIPTS


async def restore(
    client: Redis, users: Callable[[], Awaitable[None]], refill: Callable[[], Awaitable[None]]
) -> None:
    """Load the scripts, then call `users` to configure every node's user and `refill` to send every open order again.

    Two control planes may do this at the same time, and each step may be repeated.
    """
    run_id = _run_id((await _all(client, [("INFO", "server")]))[0])
    await ensure_scripts(client)
    await users()
    failpoint("redis.restored_users")
    await refill()
    failpoint("redis.refilled")
    # Write the run id that was read first: if Redis restarted since then, the marker does not match it.
    await _all(client, [("SET", MARKER, run_id)])
    log.info("redis_users_scripts_and_tasks_restored")


async def answers(client: Redis, commands: list[Command]) -> list[Any]:
    """Send Redis commands in pipelines and return their answers.

    A refused command has its `ResponseError` as answer.
    """
    found: list[Any] = []
    for start in range(0, len(commands), _PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for command in commands[start : start + _PIPELINE]:
            pipeline.execute_command(*command)
        try:
            found += await pipeline.execute(raise_on_error=False)
        except REDIS_UNAVAILABLE as error:
            raise RedisUnavailable(
                why_untrusted(error) or f"Redis did not answer: {type(error).__name__}: {error}"
            ) from error
    return found


async def _all(client: Redis, commands: list[Command]) -> list[Any]:
    found = await answers(client, commands)
    for answer in found:
        if isinstance(answer, Exception):
            raise RedisUnavailable(f"Redis refused a command: {type(answer).__name__}: {answer}") from answer
    return found


def _set_user(login: NodeLogin) -> Command:
    keys = QueueKeys.of(namespace_of(login.node_id)).all()
    prior = () if login.prior_sha256 is None else (f"#{login.prior_sha256}",)
    return (
        *("ACL", "SETUSER", user_name(login.node_id)),
        # Reset first, in the same command: rights that an older release granted must not remain.
        *("reset", "on", "resetchannels", f"#{login.password_sha256}", *prior),
        *(f"~{key}" for key in keys),
        *(f"+{command}" for command in NODE_COMMANDS),
    )


def _run_id(info: Any) -> bytes:
    return str(info["run_id"]).encode()
