"""Who reaches what, over which transport, with which credential (PLT-2): a function of the settings, of the nodes
that are known, and of what Redis says of itself.

It tells what this control plane was told and can ask for. A proxy in front of it, or a firewall, it does not see.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from redis.asyncio.connection import parse_url
from sqlalchemy.engine import make_url

from control_plane.settings import Settings

PROGRAMS: Final = ("api", "dispatcher", "projector")
_KEYED: Final = ("verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """How many have access, and how many were admitted and have yet to enrol."""

    with_access: int
    expected: int


@dataclass(frozen=True, slots=True)
class RedisLimits:
    """What Redis says of itself. None: it did not, or may not say. `plain_port` 0 is none; `maxmemory` (bytes) 0 no
    limit.
    """

    policy: str | None = None
    maxmemory: int | None = None
    bind: tuple[str, ...] | None = None
    plain_port: int | None = None


@dataclass(frozen=True, slots=True)
class ReachPath:
    """One way from a part to another.

    `survives_private_redis`: whether it still leads there when Redis has no address outside the control plane's own
    network.
    """

    who: str
    reaches: str
    at: str
    transport: str
    encrypted: bool
    credential: str
    survives_private_redis: bool = True
    warnings: tuple[str, ...] = field(default=())


def paths(settings: Settings, nodes: KnownNodes, redis: RedisLimits) -> tuple[ReachPath, ...]:
    """Every path, those of people first; with what an operator should mend."""
    return (
        _to_api(settings, "callers", "API key, bearer"),
        *(_to_database(settings, each) for each in PROGRAMS),
        *_to_redis(settings, redis),
        *_of_nodes(settings, nodes),
    )


def _of_nodes(settings: Settings, nodes: KnownNodes) -> Iterator[ReachPath]:
    if nodes.expected:
        yield _to_api(
            settings,
            _counted(nodes.expected, "admitted node"),
            "one-time token, and a proof of the key it made",
        )
    if nodes.with_access:
        who = _counted(nodes.with_access, "node")
        yield _to_api(settings, who, "its session's credential, bearer")
        yield _to_queue(settings, who)


def _to_api(settings: Settings, who: str, credential: str) -> ReachPath:
    secure = settings.tls_certificate_file is not None
    hosts = [_host_of(address) for address in settings.listen.split(",")]
    return ReachPath(
        who=who,
        reaches="API",
        at=settings.listen,
        transport="HTTPS" if secure else "HTTP",
        encrypted=secure,
        credential=credential,
        warnings=(
            *_plaintext(hosts, encrypted=secure),
            *(f"the API listens {where}" for where in _open(hosts)),
        ),
    )


def _to_database(settings: Settings, who: str) -> ReachPath:
    url = make_url(settings.database_url.get_secret_value())
    told = {name: value for name, value in url.query.items() if isinstance(value, str)}
    host, port = url.host or told.get("host", ""), url.port or told.get("port", "5432")
    local = not host or host.startswith("/")
    mode = told.get("sslmode", "prefer")
    secure = not local and mode in ("require", *_KEYED)
    warnings = [] if local else [*_plaintext([host], encrypted=secure)]
    if secure and mode not in _KEYED:
        warnings.append("nobody checks whom Postgres is: set sslmode=verify-full")
    return ReachPath(
        who=who,
        reaches="Postgres",
        at=f"{host or 'the default folder'}/.s.PGSQL.{port}" if local else f"{host}:{port}",
        transport="Unix socket" if local else f"TCP, sslmode={mode}",
        encrypted=secure,
        credential=f"role {url.username or told.get('user', 'unnamed')}, password",
        warnings=tuple(warnings),
    )


def _to_redis(settings: Settings, redis: RedisLimits) -> Iterator[ReachPath]:
    told = parse_url(settings.redis_url.get_secret_value())
    secure, local = settings.redis_over_tls, "path" in told
    host = str(told.get("host", "localhost"))
    said = [*_limits(redis), *_listening(settings, redis)]
    for who in PROGRAMS:
        yield ReachPath(
            who=who,
            reaches="Redis",
            at=str(told["path"]) if local else f"{host}:{told.get('port', 6379)}",
            transport="Unix socket" if local else _tcp(encrypted=secure),
            encrypted=secure,
            credential=f"user {told.get('username', 'default')}, password",
            warnings=(*([] if local else _plaintext([host], encrypted=secure)), *said),
        )
        said = []  # of Redis itself, and so told once


def _to_queue(settings: Settings, who: str) -> ReachPath:
    host, secure = settings.queue_host, settings.nodes_over_tls
    public = ["nodes find Redis at a public address; it must have none"] if _is_public(host) else []
    return ReachPath(
        who=who,
        reaches="Redis",
        at=f"{host}:{settings.queue_port}",
        transport=_tcp(encrypted=secure),
        encrypted=secure,
        credential="user node-<id>, its session's password: its own queue's keys, no other",
        # Without it orders wait in the ledger and guests run on. It needs a network that nodes and Redis share.
        survives_private_redis=_is_loopback(host),
        warnings=(*_plaintext([host], encrypted=secure), *public),
    )


def _limits(redis: RedisLimits) -> Iterator[str]:
    if redis.policy is None or redis.maxmemory is None:
        yield "Redis does not say what it does when its memory is full"
        return
    if redis.policy != "noeviction":
        yield f"maxmemory-policy is {redis.policy}: Redis drops orders when it is full; set noeviction"
    if redis.maxmemory == 0:
        yield "maxmemory is not set: one flooded queue takes all memory of its host"


def _listening(settings: Settings, redis: RedisLimits) -> Iterator[str]:
    if settings.redis_over_tls and redis.plain_port:
        yield f"Redis answers in plaintext too, at port {redis.plain_port}: set port 0"
    if redis.bind is not None:
        addresses = [each.removeprefix("-") for each in redis.bind] or ["*"]
        yield from (f"Redis listens {where}" for where in _open(addresses))


def _plaintext(hosts: list[str], *, encrypted: bool) -> Iterator[str]:
    crossing = [host for host in hosts if not _is_loopback(host)]
    if crossing and not encrypted:
        yield f"passwords and what they open cross the network in plaintext ({', '.join(crossing)})"


def _open(hosts: list[str]) -> Iterator[str]:
    for host in hosts:
        if host in ("*", "::*", "") or _is_unspecified(host):
            yield f"on every address of its machine ({host or '*'})"
        elif _is_public(host):
            yield f"on a public address ({host})"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"


def _tcp(*, encrypted: bool) -> str:
    return "TLS" if encrypted else "TCP"


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a name: what it stands for is not asked here, and may change."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_public(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_global


def _is_unspecified(host: str) -> bool:
    address = _address(host)
    return address is not None and address.is_unspecified
