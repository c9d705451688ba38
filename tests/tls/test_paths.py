"""The path inventory (PLT-2): who reaches what, and what of it an operator should mend."""

from collections.abc import Mapping

import msgspec
import pytest
import redis

from control_plane.path_inventory import KnownNodes, ReachPath, RedisLimits, paths
from control_plane.settings import Settings
from tests.servers.plane import RunningPlane

SOUND = RedisLimits(policy="noeviction", maxmemory=2**28, bind=("10.0.0.5",), plain_port=0)
SEALED = {
    "database_url": "postgresql+psycopg://sliceplane_app:secret@10.0.0.4/sliceplane?sslmode=verify-full",
    "redis_url": "rediss://control:secret@10.0.0.5:6380/0",
    "queue_host": "10.0.0.5",
    "queue_port": 6380,
    "listen": "10.0.0.3:8080",
    "tls_certificate_file": "/etc/api.pem",
    "tls_key_file": "/etc/api.key",
}
FLEET = KnownNodes(with_access=4608, expected=1)


def inventory(redis: RedisLimits = SOUND, nodes: KnownNodes = FLEET, **told: object) -> tuple[ReachPath, ...]:
    return paths(settings(told), nodes, redis)


def settings(told: Mapping[str, object]) -> Settings:
    return Settings.model_validate({**SEALED, **told})


def warnings(found: tuple[ReachPath, ...]) -> set[str]:
    return {f"{path.who} to {path.reaches}: {warning}" for path in found for warning in path.warnings}


def test_a_sealed_control_plane_has_no_warning_and_no_path_in_plaintext() -> None:
    found = inventory()
    assert warnings(found) == set()
    assert all(path.encrypted for path in found)
    assert [(path.who, path.reaches) for path in found] == [
        ("callers", "API"),
        *((program, "Postgres") for program in ("api", "dispatcher", "projector")),
        *((program, "Redis") for program in ("api", "dispatcher", "projector")),
        ("1 admitted node", "API"),
        ("4,608 nodes", "API"),
        ("4,608 nodes", "Redis"),
    ]


def test_only_the_way_of_nodes_to_their_queues_ends_with_a_private_redis() -> None:
    ending = [(path.who, path.reaches) for path in inventory() if not path.survives_private_redis]
    assert ending == [("4,608 nodes", "Redis")]


def test_no_secret_is_shown() -> None:
    assert "secret" not in repr(inventory())


PLAIN = "passwords and what they open cross the network in plaintext"


@pytest.mark.parametrize(
    ("told", "warned"),
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
            "4,608 nodes to Redis: nodes find Redis at a public address; it must have none",
        ),
        (
            {"database_url": "postgresql+psycopg://x@10.0.0.4/x"},
            f"api to Postgres: {PLAIN} (10.0.0.4)",
        ),
        (
            {"database_url": "postgresql+psycopg://x@10.0.0.4/x?sslmode=require"},
            "api to Postgres: nobody checks whom Postgres is: set sslmode=verify-full",
        ),
    ],
)
def test_what_is_readable_or_public_is_warned_of(told: dict[str, object], warned: str) -> None:
    assert warned in warnings(paths(settings(told), FLEET, SOUND))


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        (
            {"policy": "allkeys-lru"},
            "maxmemory-policy is allkeys-lru: Redis drops orders when it is full; set noeviction",
        ),
        (
            {"maxmemory": 0},
            "maxmemory is not set: one flooded queue takes all memory of its host",
        ),
        (
            {"plain_port": 6379},
            "Redis answers in plaintext too, at port 6379: set port 0",
        ),
        ({"bind": ["*"]}, "Redis listens on every address of its machine (*)"),
        ({"bind": []}, "Redis listens on every address of its machine (*)"),
        ({"bind": ["8.8.8.8"]}, "Redis listens on a public address (8.8.8.8)"),
        ({"policy": None}, "Redis does not say what it does when its memory is full"),
    ],
)
def test_what_redis_says_of_itself_is_warned_of_once(said: dict[str, object], warned: str) -> None:
    said_by_redis = msgspec.convert(
        {
            "policy": "noeviction",
            "maxmemory": 1,
            "bind": ["10.0.0.5"],
            "plain_port": 0,
            **said,
        },
        RedisLimits,
    )
    assert warnings(inventory(said_by_redis)) == {f"api to Redis: {warned}"}


def test_plaintext_on_loopback_and_sockets_is_nobodys_business() -> None:
    found = inventory(
        RedisLimits("noeviction", 1, ("127.0.0.1", "-::1"), 6379),
        database_url="postgresql+psycopg://x@/x?host=/run/postgresql&port=5433",
        redis_url="redis://127.0.0.1:6379",
        queue_host="127.0.0.1",
        listen="127.0.0.1:8080,[::1]:8080",
        tls_certificate_file=None,
        tls_key_file=None,
    )
    assert warnings(found) == set()
    assert not any(path.encrypted for path in found)
    assert {path.at for path in found if path.reaches == "Postgres"} == {"/run/postgresql/.s.PGSQL.5433"}


def test_the_api_tells_the_inventory_with_what_redis_says(
    shared_plane: RunningPlane,
) -> None:
    answer = shared_plane.client().get("/paths").json()
    assert answer["next_cursor"] is None
    found = {(each["who"], each["reaches"]): each for each in answer["items"]}
    assert found["dispatcher", "Redis"]["credential"] == "user sliceplane, password"
    assert found["callers", "API"]["at"] == shared_plane.settings.listen
    assert [each["warnings"] for each in found.values() if each["warnings"]] == []


def test_a_redis_that_evicts_is_found_in_the_inventory(
    running_plane: RunningPlane,
) -> None:
    with redis.Redis.from_url(running_plane.redis.url) as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
    found = running_plane.client().get("/paths").json()["items"]
    told = [warning for each in found for warning in each["warnings"]]
    assert told == ["maxmemory-policy is allkeys-lru: Redis drops orders when it is full; set noeviction"]


def test_a_redis_that_is_away_is_said_to_say_nothing(
    running_plane: RunningPlane,
) -> None:
    running_plane.redis.stop()
    found = running_plane.client().get("/paths").json()["items"]
    told = [warning for each in found for warning in each["warnings"]]
    assert told == ["Redis does not say what it does when its memory is full"]
