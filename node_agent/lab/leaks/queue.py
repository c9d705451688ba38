"""Keys of a node in Redis, with their members. Keys of live workers are not leaks and are omitted."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import redis

from node_agent.lab.leaks.target import HostTarget, TargetUnreadable

_LIVE_WORKERS: Final = ":workers"


def keys(host: HostTarget) -> Iterator[str]:
    """Yield every Redis key of a node with its members: ids of tasks, never the content of tasks."""
    try:
        url = Path(host.redis_url_file).read_text().strip()
        with redis.Redis.from_url(url, decode_responses=True, socket_timeout=10) as client:
            for key in client.scan_iter(match=f"{host.namespace}:*", count=1000):
                if not key.endswith(_LIVE_WORKERS):
                    yield from _members(client, key)
    except (OSError, redis.RedisError) as error:
        raise TargetUnreadable(f"cannot read keys in Redis: {error}") from error


def _members(client: "redis.Redis", key: str) -> Iterator[str]:
    yield from (f"{key} {member!s}".strip() for member in _held(client, key))


def _held(client: "redis.Redis", key: str) -> Iterable[object]:
    match client.type(key):
        case "hash":
            return client.hkeys(key)
        case "list":
            return client.lrange(key, 0, -1)
        case "set":
            return client.smembers(key)
        case "zset":
            return client.zrange(key, 0, -1)
        case _:
            return [""]
