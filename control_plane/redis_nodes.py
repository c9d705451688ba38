"""What Redis must know for nodes to work: their users and the scripts. The control plane owns and restores both.

Redis keeps neither across a restart, and a flush takes the orders. So a marker in Redis names the very process (its
run id) that was last restored in full, and is written after everything else: a marker that is missing or names
another process means that something is lost, and a crash half-way through a restoration leaves it to be done again.

A node's user is named after the node, holds only the SHA-256 of passwords that the node made, and may do what
`NODE_COMMANDS` lists on the keys of its own queue, and nothing else. It holds two passwords, those of the node's
newest session and of the one before, so that a node which renews never finds itself between them when its connections
end. Every function raises `RedisAway`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import structlog
from redis.asyncio import Redis

from control_plane.outage import REDIS_AWAY
from events.values import NodeId
from tasks.failpoints import failpoint
from tasks.scripts import ALL_SCRIPTS, NODE_COMMANDS, QueueKeys, namespace_of
from tasks.trust import why_untrusted

Command = tuple[str | bytes | int, ...]
_MARKER: Final = "sliceplane:restored"
_PIPELINE: Final = 500

log = structlog.get_logger(__name__)


class RedisAway(Exception):
    """Redis did not answer, or refused what the control plane may do. Nothing is known of what it carried out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class NodeLogin:
    """A node's right to its queue, by the SHA-256 (hex) of its password, and of the one before while that counts."""

    node_id: NodeId
    password_sha256: str
    prior_sha256: str | None = None


class Loss(Enum):
    """What an inspection found amiss."""

    RESTARTED = "restarted"
    FLUSHED = "flushed"
    SCRIPTS = "scripts"


class Usage(NamedTuple):
    """Redis' usage: bytes of keys, bytes in connections' buffers, number of connections, and the processor time since
    its start."""

    kept_bytes: int
    connection_bytes: int
    connections: int
    cpu_seconds: float


def user_name(node_id: NodeId) -> str:
    return f"node-{node_id}"


def node_of_user(name: str) -> NodeId | None:
    """Whose user it is; None for one that is no node's."""
    node_id = name.removeprefix(user_name(NodeId("")))
    return NodeId(node_id) if node_id != name else None


async def ensure_scripts(client: Redis) -> None:
    await _all(client, [("SCRIPT", "LOAD", script.source) for script in ALL_SCRIPTS])


async def ensure_node_users(client: Redis, logins: Sequence[NodeLogin]) -> None:
    """Give nodes their rights, exactly, and end every other password. Connections that exist go on."""
    await _all(client, [_set_user(login) for login in logins])


async def end_connections(client: Redis, node_ids: Sequence[NodeId]) -> None:
    """Have whoever is connected as one of the nodes show a password again.

    Redis asks for it only once, and a copy of a node's old disk would go on taking its orders.
    """
    await _all(client, [("CLIENT", "KILL", "USER", user_name(node_id)) for node_id in node_ids])


async def end_by_number(client: Redis, numbers: Sequence[int]) -> None:
    """End connections by their numbers; those that are gone already are no matter."""
    await answers(client, [("CLIENT", "KILL", "ID", number) for number in numbers])


async def shut_out(client: Redis, node_ids: Sequence[NodeId]) -> None:
    """End nodes' users and with them their connections; what waits in their queues stays."""
    await _all(client, [("ACL", "DELUSER", user_name(node_id)) for node_id in node_ids])


async def forget_queues(client: Redis, node_ids: Sequence[NodeId]) -> None:
    """Drop the keys of nodes that are shut out, or that flooded them. Orders that were queued are still open in the
    ledger.
    """
    keys = [QueueKeys.of(namespace_of(node_id)).all() for node_id in node_ids]
    await _all(client, [("UNLINK", *each) for each in keys])


async def usage(client: Redis) -> Usage:
    [said] = await _all(client, [("INFO",)])
    return Usage(
        said["used_memory_dataset"],
        said["mem_clients_normal"],
        said["connected_clients"],
        said["used_cpu_user"] + said["used_cpu_sys"],
    )


async def inspect(client: Redis) -> Loss | None:
    """What was lost since `restore` last finished; None if nothing."""
    marker, info, *loaded = await _all(
        client,
        [("GET", _MARKER), ("INFO", "server"), ("SCRIPT", "EXISTS", *(script.sha for script in ALL_SCRIPTS))],
    )
    if marker is None:
        return Loss.FLUSHED
    if marker != _run_id(info):
        return Loss.RESTARTED
    return None if all(loaded[0]) else Loss.SCRIPTS


async def restore(
    client: Redis, users: Callable[[], Awaitable[None]], refill: Callable[[], Awaitable[None]]
) -> None:
    """Bring back scripts, then have `users` give every node its rights and `refill` send every due order again.

    Two control planes may do this at once, and each step may be repeated.
    """
    run_id = _run_id((await _all(client, [("INFO", "server")]))[0])
    await ensure_scripts(client)
    await users()
    failpoint("redis.restored_users")
    await refill()
    failpoint("redis.refilled")
    # The run id read first: a Redis that restarted meanwhile gets the old one's name, and is found out.
    await _all(client, [("SET", _MARKER, run_id)])
    log.info("redis_restored")


async def answers(client: Redis, commands: list[Command]) -> list[Any]:
    """Send commands in pipelines; a command that Redis refused has its `ResponseError` for an answer."""
    found: list[Any] = []
    for start in range(0, len(commands), _PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for command in commands[start : start + _PIPELINE]:
            pipeline.execute_command(*command)
        try:
            found += await pipeline.execute(raise_on_error=False)
        except REDIS_AWAY as error:
            raise RedisAway(why_untrusted(error) or f"{type(error).__name__}: {error}") from error
    return found


async def _all(client: Redis, commands: list[Command]) -> list[Any]:
    found = await answers(client, commands)
    for answer in found:
        if isinstance(answer, Exception):
            raise RedisAway(f"{type(answer).__name__}: {answer}") from answer
    return found


def _set_user(login: NodeLogin) -> Command:
    keys = QueueKeys.of(namespace_of(login.node_id)).all()
    prior = () if login.prior_sha256 is None else (f"#{login.prior_sha256}",)
    return (
        *("ACL", "SETUSER", user_name(login.node_id)),
        # From nothing, in one command: rights that an older release gave do not linger.
        *("reset", "on", "resetchannels", f"#{login.password_sha256}", *prior),
        *(f"~{key}" for key in keys),
        *(f"+{command}" for command in NODE_COMMANDS),
    )


def _run_id(info: Any) -> bytes:
    return str(info["run_id"]).encode()
