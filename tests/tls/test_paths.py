"""Tests of the inventory of network paths (PLT-2), which lists client and server of each path and warns about insecure
settings.
"""

from collections.abc import Mapping

import msgspec
import pytest
import redis

from control_plane.api.path_inventory import KnownNodes, ReachPath, RedisLimits, paths
from control_plane.programs import Program
from control_plane.settings import Settings
from tests.servers.plane import RunningPlane

SECURE_REDIS = RedisLimits(policy="noeviction", maxmemory=2**28, bind=("10.0.0.5",), plain_port=0)
SECURE_SETTINGS = {
    "database_url": "postgresql+psycopg://sliceplane_app:secret@10.0.0.4/sliceplane?sslmode=verify-full",
    "redis_url": "rediss://control:secret@10.0.0.5:6380/0",
    "queue_host": "10.0.0.5",
    "queue_port": 6380,
    "listen": "10.0.0.3:8080",
    "tls_certificate_file": "/etc/api.pem",
    "tls_key_file": "/etc/api.key",
    "ssh_gateway_address": "ssh.example.com:22",
    "terminal_address": "wss://ssh.example.com",
}
FLEET = KnownNodes(with_access=4608, expected=1)


def inventory(
    redis: RedisLimits = SECURE_REDIS, nodes: KnownNodes = FLEET, **changes: object
) -> tuple[ReachPath, ...]:
    return paths(settings(changes), nodes, redis)


def settings(changes: Mapping[str, object]) -> Settings:
    return Settings.model_validate({**SECURE_SETTINGS, **changes})


def warnings(found: tuple[ReachPath, ...]) -> set[str]:
    return {f"{path.client} to {path.server}: {warning}" for path in found for warning in path.warnings}


def test_control_plane_with_secure_settings_has_only_encrypted_network_paths_and_no_warning() -> None:
    found = inventory()
    assert warnings(found) == set()
    assert all(path.encrypted for path in found)
    assert [(path.client, path.server) for path in found] == [
        ("callers", "API"),
        ("callers", "SSH gateway"),
        ("callers", "SSH gateway (terminals)"),
        *((program, "Postgres") for program in Program),
        *((program, "Redis") for program in Program if program is not Program.SEALER),
        ("1 admitted node", "API"),
        ("4,608 nodes", "API"),
        ("4,608 nodes", "Redis"),
    ]


def test_only_the_path_from_nodes_to_redis_is_marked_as_failing_if_redis_is_private_to_the_control_plane() -> (
    None
):
    ending = [(path.client, path.server) for path in inventory() if not path.survives_private_redis]
    assert ending == [("4,608 nodes", "Redis")]


def test_inventory_of_network_paths_contains_no_password() -> None:
    assert "secret" not in repr(inventory())


PLAIN = "credentials and data cross the network in plaintext"


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        (
            {"tls_certificate_file": None, "tls_key_file": None},
            f"4,608 nodes to API: {PLAIN} (10.0.0.3)",
        ),
        (
            {"redis_url": "redis://10.0.0.5"},
            f"4,608 nodes to Redis: {PLAIN} (10.0.0.5)",
        ),
        ({"redis_url": "redis://10.0.0.5"}, f"dispatcher to Redis: {PLAIN} (10.0.0.5)"),
        ({"queue_tls": False}, f"4,608 nodes to Redis: {PLAIN} (10.0.0.5)"),
        (
            {"listen": "0.0.0.0:80"},
            "callers to API: the API listens on every address of its machine (0.0.0.0)",
        ),
        (
            {"listen": "[2606:4700::1]:80"},
            "callers to API: the API listens on a public address (2606:4700::1)",
        ),
        (
            {"queue_host": "8.8.8.8"},
            "4,608 nodes to Redis: Redis has a public address; let nodes reach it at a private one",
        ),
        (
            {"database_url": "postgresql+psycopg://x@10.0.0.4/x"},
            f"api to Postgres: {PLAIN} (10.0.0.4)",
        ),
        (
            {"database_url": "postgresql+psycopg://x@10.0.0.4/x?sslmode=require"},
            "api to Postgres: the server certificate of Postgres is not verified: set sslmode=verify-full",
        ),
    ],
)
def test_network_path_that_is_plaintext_public_or_unverified_has_a_warning(
    changes: dict[str, object], warning: str
) -> None:
    assert warning in warnings(paths(settings(changes), FLEET, SECURE_REDIS))


@pytest.mark.parametrize(
    ("limits", "warning"),
    [
        (
            {"policy": "allkeys-lru"},
            "maxmemory-policy is allkeys-lru: Redis drops orders when it is full; set noeviction",
        ),
        (
            {"maxmemory": 0},
            "Redis has no maxmemory: one flooded queue can take all memory of the Redis host",
        ),
        (
            {"plain_port": 6379},
            "Redis also accepts plaintext connections on port 6379: set port 0",
        ),
        ({"bind": ["*"]}, "Redis listens on every address of its machine (*)"),
        ({"bind": []}, "Redis listens on every address of its machine (*)"),
        ({"bind": ["8.8.8.8"]}, "Redis listens on a public address (8.8.8.8)"),
        (
            {"policy": None},
            "the memory limit of Redis is unknown: it does not report maxmemory and maxmemory-policy",
        ),
    ],
)
def test_insecure_redis_setting_has_exactly_one_warning_in_the_path_inventory(
    limits: dict[str, object], warning: str
) -> None:
    reported = msgspec.convert(
        {
            "policy": "noeviction",
            "maxmemory": 1,
            "bind": ["10.0.0.5"],
            "plain_port": 0,
            **limits,
        },
        RedisLimits,
    )
    assert warnings(inventory(reported)) == {f"api to Redis: {warning}"}


def test_plaintext_network_path_over_loopback_or_a_unix_socket_has_no_warning() -> None:
    found = inventory(
        RedisLimits("noeviction", 1, ("127.0.0.1", "-::1"), 6379),
        database_url="postgresql+psycopg://x@/x?host=/run/postgresql&port=5433",
        redis_url="redis://127.0.0.1:6379",
        queue_host="127.0.0.1",
        listen="127.0.0.1:8080,[::1]:8080",
        tls_certificate_file=None,
        tls_key_file=None,
        ssh_gateway_address=None,
        terminal_address="ws://127.0.0.1:2280",
    )
    assert warnings(found) == set()
    assert not any(path.encrypted for path in found)
    assert {path.address for path in found if path.server == "Postgres"} == {"/run/postgresql/.s.PGSQL.5433"}


def test_api_lists_network_paths_with_the_address_and_login_user_from_its_settings(
    shared_plane: RunningPlane,
) -> None:
    answer = shared_plane.client().get("/paths").json()
    assert answer["next_cursor"] is None
    found = {(each["client"], each["server"]): each for each in answer["items"]}
    assert found["dispatcher", "Redis"]["credential"] == "user sliceplane, password"
    assert found["callers", "API"]["address"] == shared_plane.settings.listen
    assert [each["warnings"] for each in found.values() if each["warnings"]] == []


def test_redis_with_an_eviction_policy_has_a_warning_in_the_api(
    running_plane: RunningPlane,
) -> None:
    with redis.Redis.from_url(running_plane.redis.url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
    found = running_plane.client().get("/paths").json()["items"]
    found_warnings = [warning for each in found for warning in each["warnings"]]
    assert found_warnings == [
        "maxmemory-policy is allkeys-lru: Redis drops orders when it is full; set noeviction"
    ]


def test_unreachable_redis_has_the_warning_that_its_limits_are_unknown(
    running_plane: RunningPlane,
) -> None:
    running_plane.redis.stop()
    found = running_plane.client().get("/paths").json()["items"]
    found_warnings = [warning for each in found for warning in each["warnings"]]
    assert found_warnings == [
        "the memory limit of Redis is unknown: it does not report maxmemory and maxmemory-policy"
    ]
