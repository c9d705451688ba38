"""Inventory of network paths: which client reaches which server, over which transport, with which credential (PLT-2).

It is a function of the settings, the number of nodes, and the settings that Redis reports. It lists only what this
control plane is configured with or can query; it cannot see a proxy or a firewall in front of it.
"""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url
from sqlalchemy.engine import make_url

from control_plane.programs import Program
from control_plane.settings import ROLE_OF_SEALER, Settings

_KEYED: Final = ("verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """Number of nodes with access, and of registered nodes (`expected`) that have not enrolled yet."""

    with_access: int
    expected: int


@dataclass(frozen=True, slots=True)
class RedisLimits:
    """Settings that Redis reports.

    None means unknown: Redis did not answer or refused the query. A `plain_port` of 0 means no plaintext port, a
    `maxmemory` (bytes) of 0 no limit.
    """

    policy: str | None = None
    maxmemory: int | None = None
    bind: tuple[str, ...] | None = None
    plain_port: int | None = None


@dataclass(frozen=True, slots=True)
class ReachPath:
    """One network path from a client to a server.

    `survives_private_redis`: whether the path still works when Redis has no address outside the control plane's own
    network.
    """

    client: str
    server: str
    address: str
    transport: str
    encrypted: bool
    credential: str
    survives_private_redis: bool = True
    warnings: tuple[str, ...] = field(default=())


def paths(settings: Settings, nodes: KnownNodes, redis: RedisLimits) -> tuple[ReachPath, ...]:
    """Return every network path, those of API callers first, with warnings about what an operator should correct."""
    return (
        _to_api(settings, "callers", "API key, bearer"),
        *_to_ssh_gateway(settings),
        *(_to_database(settings, each) for each in Program),
        *_to_redis(settings, redis),
        *_node_paths(settings, nodes),
    )


def _to_ssh_gateway(settings: Settings) -> Iterator[ReachPath]:
    if settings.ssh_gateway_address is not None:
        yield ReachPath(
            client="callers",
            server="SSH gateway",
            address=settings.ssh_gateway_address,
            transport="SSH",
            encrypted=True,
            credential="SSH key of the allocation",
        )
    if settings.terminal_address is not None:
        secure = settings.terminal_address.startswith("wss:")
        yield ReachPath(
            client="callers",
            server="SSH gateway (terminals)",
            address=settings.terminal_address,
            transport="WebSocket over TLS" if secure else "WebSocket",
            encrypted=secure,
            credential="single-use ticket",
            warnings=tuple(
                _plaintext([urlsplit(settings.terminal_address).hostname or ""], encrypted=secure)
            ),
        )


def _node_paths(settings: Settings, nodes: KnownNodes) -> Iterator[ReachPath]:
    if nodes.expected:
        yield _to_api(
            settings,
            _counted(nodes.expected, "admitted node"),
            "enrolment token, and a proof signed with the node's private key",
        )
    if nodes.with_access:
        client = _counted(nodes.with_access, "node")
        yield _to_api(settings, client, "session credential, bearer")
        yield _to_queue(settings, client)


def _to_api(settings: Settings, client: str, credential: str) -> ReachPath:
    secure = settings.tls_certificate_file is not None
    hosts = [_host_of(address) for address in settings.listen.split(",")]
    return ReachPath(
        client=client,
        server="API",
        address=settings.listen,
        transport="HTTPS" if secure else "HTTP",
        encrypted=secure,
        credential=credential,
        warnings=(
            *_plaintext(hosts, encrypted=secure),
            *_open("the API", hosts),
        ),
    )


def _to_database(settings: Settings, client: str) -> ReachPath:
    url = make_url(settings.database_url.get_secret_value())
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    host, port = url.host or options.get("host", ""), url.port or options.get("port", "5432")
    local = not host or host.startswith("/")
    mode, role = options.get("sslmode", "prefer"), url.username or options.get("user", "unnamed")
    secure = not local and mode in ("require", *_KEYED)
    warnings = [] if local else [*_plaintext([host], encrypted=secure)]
    if secure and mode not in _KEYED:
        warnings.append("the server certificate of Postgres is not verified: set sslmode=verify-full")
    return ReachPath(
        client=client,
        server="Postgres",
        address=f"{host or 'the default socket folder'}/.s.PGSQL.{port}" if local else f"{host}:{port}",
        transport="Unix socket" if local else f"TCP, sslmode={mode}",
        encrypted=secure,
        credential=f"role {ROLE_OF_SEALER if client == Program.SEALER else role}, password",
        warnings=tuple(warnings),
    )


def _to_redis(settings: Settings, redis: RedisLimits) -> Iterator[ReachPath]:
    options = parse_url(settings.redis_url.get_secret_value())
    secure, local = settings.redis_over_tls, "path" in options
    host = str(options.get("host", "localhost"))
    common = [*_limits(redis), *_listening(settings, redis)]
    # The sealer does not use Redis.
    for program in (each for each in Program if each is not Program.SEALER):
        yield ReachPath(
            client=program,
            server="Redis",
            address=str(options["path"]) if local else f"{host}:{options.get('port', 6379)}",
            transport="Unix socket" if local else _tcp(encrypted=secure),
            encrypted=secure,
            credential=f"user {options.get('username', 'default')}, password",
            warnings=(*([] if local else _plaintext([host], encrypted=secure)), *common),
        )
        common = []  # these warnings concern Redis itself and are listed once


def _to_queue(settings: Settings, client: str) -> ReachPath:
    host, secure = settings.queue_host, settings.nodes_over_tls
    public = ["Redis has a public address; let nodes reach it at a private one"] if _is_public(host) else []
    return ReachPath(
        client=client,
        server="Redis",
        address=f"{host}:{settings.queue_port}",
        transport=_tcp(encrypted=secure),
        encrypted=secure,
        credential="Redis user node-<id> with the session's password, limited to the keys of the node's own queue",
        # Without this path orders wait in the ledger and guests keep running. It needs a network shared with Redis.
        survives_private_redis=_is_loopback(host),
        warnings=(*_plaintext([host], encrypted=secure), *public),
    )


def _limits(redis: RedisLimits) -> Iterator[str]:
    if redis.policy is None or redis.maxmemory is None:
        yield "the memory limit of Redis is unknown: it does not report maxmemory and maxmemory-policy"
        return
    if redis.policy != "noeviction":
        yield f"maxmemory-policy is {redis.policy}: Redis drops orders when it is full; set noeviction"
    if redis.maxmemory == 0:
        yield "Redis has no maxmemory: one flooded queue can take all memory of the Redis host"


def _listening(settings: Settings, redis: RedisLimits) -> Iterator[str]:
    if settings.redis_over_tls and redis.plain_port:
        yield f"Redis also accepts plaintext connections on port {redis.plain_port}: set port 0"
    if redis.bind is not None:
        addresses = [each.removeprefix("-") for each in redis.bind] or ["*"]
        yield from _open("Redis", addresses)


def _plaintext(hosts: list[str], *, encrypted: bool) -> Iterator[str]:
    crossing = [host for host in hosts if not _is_loopback(host)]
    if crossing and not encrypted:
        yield f"credentials and data cross the network in plaintext ({', '.join(crossing)})"


def _open(server: str, hosts: list[str]) -> Iterator[str]:
    for host in hosts:
        if host in ("*", "::*", "") or _is_unspecified(host):
            yield f"{server} listens on every address of its machine ({host or '*'})"
        elif _is_public(host):
            yield f"{server} listens on a public address ({host})"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"


def _tcp(*, encrypted: bool) -> str:
    return "TLS" if encrypted else "TCP"


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse the host of a path as an IP address; None for a host name, because its address may change."""
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
