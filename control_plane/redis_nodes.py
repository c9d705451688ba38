"""What Redis must know for nodes to work: their users and the scripts. The control plane owns and restores both.

Redis keeps neither across a restart, and a flush takes the orders. So a marker in Redis names the very process (its
run id) that was last restored in full, and is written after everything else: a marker that is missing or names
another process means that something is lost, and a crash half-way through a restoration leaves it to be done again.

A node's user is named after the node, holds only the SHA-256 of a password that the node made, and may do what
`NODE_COMMANDS` lists on the keys of its own queue, and nothing else. Every function raises `RedisAway`.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from events.values import NodeId
from tasks.failpoints import failpoint
from tasks.scripts import ALL_SCRIPTS, NODE_COMMANDS, QueueKeys, namespace_of

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
    """A node's right to its queue; `password_sha256` in hex."""

    node_id: NodeId
    password_sha256: str


class Loss(Enum):
    """What an inspection found amiss."""

    RESTARTED = "restarted"
    FLUSHED = "flushed"
    SCRIPTS = "scripts"


def user_name(node_id: NodeId) -> str:
    return f"node-{node_id}"


async def ensure_scripts(client: Redis) -> None:
    await _all(client, [("SCRIPT", "LOAD", script.source) for script in ALL_SCRIPTS])


async def ensure_node_user(client: Redis, login: NodeLogin) -> None:
    """Give a node its rights, exactly; asked again with another password, the old one ends.

    So do the connections made before: Redis asks for a password only once, and a copy of the node's old disk would
    go on taking its orders.
    """
    await _all(client, [_set_user(login), ("CLIENT", "KILL", "USER", user_name(login.node_id))])


async def revoke(client: Redis, node_id: NodeId) -> None:
    """End a node's connections, its user and its keys. Orders that were queued are still due in the ledger."""
    keys = QueueKeys.of(namespace_of(node_id)).all()
    await _all(client, [("ACL", "DELUSER", user_name(node_id)), ("UNLINK", *keys)])


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


async def restore(client: Redis, logins: Iterable[NodeLogin], refill: Callable[[], Awaitable[None]]) -> None:
    """Bring back scripts and users, then have `refill` send every due order again.

    Two control planes may do this at once, and each step may be repeated.
    """
    run_id = _run_id((await _all(client, [("INFO", "server")]))[0])
    await ensure_scripts(client)
    users = [_set_user(login) for login in logins]
    await _all(client, users)
    failpoint("redis.restored_users")
    await refill()
    failpoint("redis.refilled")
    # The run id read first: a Redis that restarted meanwhile gets the old one's name, and is found out.
    await _all(client, [("SET", _MARKER, run_id)])
    log.info("redis_restored", users=len(users))


async def answers(client: Redis, commands: list[Command]) -> list[Any]:
    """Send commands in pipelines; a command that Redis refused has its `ResponseError` for an answer."""
    found: list[Any] = []
    for start in range(0, len(commands), _PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for command in commands[start : start + _PIPELINE]:
            pipeline.execute_command(*command)
        try:
            found += await pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise RedisAway(f"{type(error).__name__}: {error}") from error
    return found


async def _all(client: Redis, commands: list[Command]) -> list[Any]:
    found = await answers(client, commands)
    for answer in found:
        if isinstance(answer, Exception):
            raise RedisAway(f"{type(answer).__name__}: {answer}") from answer
    return found


def _set_user(login: NodeLogin) -> Command:
    keys = QueueKeys.of(namespace_of(login.node_id)).all()
    return (
        *("ACL", "SETUSER", user_name(login.node_id)),
        # From nothing, in one command: rights that an older release gave do not linger.
        *("reset", "on", "resetchannels", f"#{login.password_sha256}"),
        *(f"~{key}" for key in keys),
        *(f"+{command}" for command in NODE_COMMANDS),
    )


def _run_id(info: Any) -> bytes:
    return str(info["run_id"]).encode()
