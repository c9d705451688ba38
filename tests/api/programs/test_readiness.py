"""`/readyz` and `/v1/status` report each control plane component with measurements, and 503 unless all are ok."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psycopg
import pytest

from control_plane.api import health
from control_plane.api.health import (
    CHECKS,
    FOLLOWERS,
    FRESH_SECONDS,
    LONGEST_LAG_SECONDS,
    Check,
    HealthChecks,
    judged,
)
from control_plane.commands.access import issue_first_key
from control_plane.programs import SERVER
from control_plane.settings import Settings
from control_plane.wiring import plane
from deploy.embedded.children import Child, installed_program
from deploy.embedded.postgres import PostgresServer
from tests.api.api_process import api_process
from tests.api.node import admit, allocate, batch, register_node, survey
from tests.servers.plane import ADMIN_KEY, TLS_CONTEXT, RunningPlane, sealer_settings, settings_for
from tests.servers.postgres import cloned
from tests.waiting import until


def readiness(plane: RunningPlane, check: str = "") -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the status code of `/readyz`, and its readiness checks by name."""
    answer = httpx.get(f"{plane.url}/readyz{check}", timeout=20, verify=TLS_CONTEXT)
    assert (answer.json()["status"] == "ready") is (answer.status_code == 200)
    return answer.status_code, {each["name"]: each for each in answer.json()["checks"]}


def is_ready(plane: RunningPlane) -> bool:
    return readiness(plane)[0] == 200


def await_checks(plane: RunningPlane, **statuses: str) -> dict[str, dict[str, Any]]:
    """Wait until the named checks have these statuses and all others are ok, and return the checks.

    On a busy machine, a dispatcher or projector may lose its leadership briefly, so a single response proves nothing.
    """
    wanted = {**dict.fromkeys(CHECKS, "ok"), **statuses}
    found: list[dict[str, dict[str, Any]]] = []

    def checks_match() -> bool:
        code, checks = readiness(plane)
        found[:] = [checks]
        statuses_match = {name: check["status"] for name, check in checks.items()} == wanted
        return statuses_match and code == (503 if statuses else 200)

    until(checks_match, f"the checks are {wanted}")
    return found[0]


def summary(plane: RunningPlane) -> dict[str, Any]:
    with plane.client() as client:
        return dict(client.get("/status").json())


def test_ready_control_plane_shows_every_check_with_its_measurements(running_plane: RunningPlane) -> None:
    checks = await_checks(running_plane)

    assert [*checks] == ["postgres", "redis", "dispatcher", "projector", "sealer"]
    assert all(checks[name]["latency_ms"] > 0 for name in ("postgres", "redis"))
    assert all(checks[name]["leads"] is True for name in ("dispatcher", "projector", "sealer"))
    assert all(
        checks[name]["lag_seconds"] < LONGEST_LAG_SECONDS for name in ("dispatcher", "projector", "sealer")
    )


def test_readiness_without_redis_shows_only_the_redis_check_as_failed(running_plane: RunningPlane) -> None:
    running_plane.redis.process.kill()
    running_plane.redis.process.wait()

    checks = await_checks(running_plane, redis="failed")

    assert "no order reaches a node" in checks["redis"]["message"]
    assert readiness(running_plane, "/postgres")[0] == 200
    assert readiness(running_plane, "/redis")[0] == 503


@pytest.mark.parametrize(
    ("checkpoint", "check"),
    [("dispatcher", "dispatcher"), ("allocations", "projector"), ("holdings", "projector")],
)
def test_ledger_follower_that_lags_is_not_ready_until_it_catches_up(
    running_plane: RunningPlane, checkpoint: str, check: str
) -> None:
    # A follower that lags behind an earlier event would not be late before the maximum lag has passed.
    until(lambda: await_checks(running_plane)[check]["behind"] == 0, "the follower processed all events")
    with psycopg.connect(running_plane.database.admin_dsn) as holding:
        holding.execute("select from read.checkpoint where name = %s for update", [checkpoint])
        register_node(running_plane, "n1")
        age = f"interval '{LONGEST_LAG_SECONDS + 30} seconds'"
        running_plane.rows(
            f"update ledger.event set recorded_at = recorded_at - {age} where type = 'node.registered' returning 1"
        )

        def is_late() -> bool:
            code, checks = readiness(running_plane)
            late = checks[check]
            figures = late["behind"] >= 1 and late["lag_seconds"] > LONGEST_LAG_SECONDS
            return code == 503 and figures and f"the {check} is" in late["message"]

        until(is_late, "the lag is reported")
    until(lambda: is_ready(running_plane), "the follower caught up")


@contextmanager
def unfollowed_api(server: PostgresServer, other: RunningPlane, folder: Path) -> Iterator[RunningPlane]:
    """Run an API process without dispatcher and projector, on a new database and the Redis of the plane `other`."""
    with cloned(server) as database:
        known = other.settings
        redis = known.redis_url.get_secret_value()
        settings = settings_for(database, redis, 0, known.queue_port, known.signing_key_file)
        asyncio.run(_issue_key(settings))
        with api_process(replace(other, settings=settings, database=database), folder / "api.log") as api:
            yield api.plane


async def _issue_key(settings: Settings) -> None:
    async with plane(settings, pool=1) as made:
        await made.handle(issue_first_key("test", sha256(ADMIN_KEY.encode()).hexdigest()))


def test_ledger_follower_without_a_leader_is_not_ready_until_a_process_becomes_leader(
    postgres_server: PostgresServer, running_plane: RunningPlane, tmp_path: Path
) -> None:
    with unfollowed_api(postgres_server, running_plane, tmp_path) as there, ExitStack() as opened:
        environment = {
            "SLICEPLANE_DATABASE_URL": there.settings.database_url.get_secret_value(),
            "SLICEPLANE_REDIS_URL": there.settings.redis_url.get_secret_value(),
            "SLICEPLANE_SIGNING_KEY_FILE": str(there.settings.signing_key_file),
        }
        sealing = sealer_settings(there.database, tmp_path)
        environments = {
            **dict.fromkeys(FOLLOWERS, environment),
            "sealer": {
                "SLICEPLANE_DATABASE_URL": sealing.database_url.get_secret_value(),
                "SLICEPLANE_SEALING_KEY_FILE": str(sealing.sealing_key_file),
            },
        }
        code, checks = readiness(there)
        assert code == 503
        for name in FOLLOWERS:
            assert (checks[name]["status"], checks[name]["leads"]) == ("failed", False)
            assert f"{SERVER} {name}" in checks[name]["message"]
        followers = [
            Child(name, installed_program(SERVER, name), tmp_path / f"{name}.log", environments[name])
            for name in FOLLOWERS
        ]
        for follower in followers:
            opened.callback(follower.stop)
            follower.start()
        until(lambda: is_ready(there), "all followers lead")
        followers[0].stop()
        await_checks(there, dispatcher="failed")


def test_unknown_readiness_check_is_refused_with_the_names_of_all_checks(running_plane: RunningPlane) -> None:
    answer = httpx.get(f"{running_plane.url}/readyz/moon", timeout=20, verify=TLS_CONTEXT)
    assert answer.status_code == 404
    assert "choose one of postgres, redis, dispatcher, projector, sealer" in answer.json()["detail"]


def test_readiness_without_postgres_shows_every_follower_of_the_ledger_as_unknown(
    running_plane: RunningPlane,
) -> None:
    await_checks(running_plane)
    name = running_plane.database.name
    server = psycopg.conninfo.make_conninfo(running_plane.database.admin_dsn, dbname="postgres")
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'alter database "{name}" with allow_connections false')
        try:
            running_plane.database.cut()
            await_checks(running_plane, postgres="failed", **dict.fromkeys(FOLLOWERS, "unknown"))
        finally:
            admin.execute(f'alter database "{name}" with allow_connections true')
    until(lambda: is_ready(running_plane), "the control plane is back")


def test_status_counts_nodes_by_state_and_drift_and_tasks_that_need_attention(
    running_plane: RunningPlane,
) -> None:
    assert summary(running_plane)["nodes"] == {}
    register_node(running_plane, "n2")
    node = admit(running_plane, "n1")
    noticed = {"slot": None, "kind": "uplink.lost", "desired": "a default route", "observed": "none"}
    drift = [{**noticed, "since": "2026-03-01T12:00:00Z"}]
    report = batch("5f5ae5b2-3a7d-4a3e-9d8b-0d5b7a0f6c11", (1, survey(drift=drift)))
    assert node.post("/reports", json=report).is_success

    found = summary(running_plane)

    assert found["nodes"] == {"enrolled": 1, "registered": 1}
    assert found["slots"] == {"free": 1}
    assert found["blocked_slots"] == {"by_reason": {"uplink.lost": 1}, "by_sku": {"lab.small": 1}}
    assert found["drift"] == {"open": 1, "blocking": 1}
    assert found["tasks"] == {"failed": 0, "poisoned": 0, "refused": 0, "expired": 0, "parked": 0}
    running_plane.rows("update work.node_seen set seen_at = seen_at - interval '1 hour' returning 1")
    found = summary(running_plane)
    assert found["nodes"] == {"registered": 1, "unreachable": 1}
    assert found["blocked_slots"]["by_reason"] == {"unreachable": 1}


def test_status_counts_failed_tasks(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1")
    assert allocate(running_plane).status_code == 202
    failed = "update work.task set state = 'failed' where kind = 'slice.apply' returning 1"
    until(lambda: len(running_plane.rows(failed)) == 1, "the order is derived")
    assert summary(running_plane)["tasks"]["failed"] == 1


@pytest.mark.parametrize(
    ("lag", "ok"), [(0.0, True), (LONGEST_LAG_SECONDS, True), (LONGEST_LAG_SECONDS + 1, False)]
)
def test_ledger_follower_is_ready_only_within_the_maximum_lag(lag: float, ok: bool) -> None:
    assert judged("projector", leads=True, behind=3, lag_seconds=lag, error=None).ok is ok


def test_ledger_follower_stopped_by_an_event_is_not_ready_and_names_the_event() -> None:
    check = judged(
        "projector",
        leads=True,
        behind=3,
        lag_seconds=0.0,
        error="holdings is stopped by the event at position 7",
    )
    assert check.ok is False
    assert "position 7" in check.message


@pytest.mark.parametrize("path", ["/readyz", "/readyz/postgres"])
def test_many_requests_for_readiness_run_each_check_at_most_once_per_second(
    running_plane: RunningPlane, path: str
) -> None:
    until(lambda: is_ready(running_plane), "the control plane is ready")
    began = time.monotonic()

    def latency(client: httpx.Client) -> list[float]:
        checks = [client.get(path, timeout=20).json()["checks"][0] for _ in range(20)]
        return [check["latency_ms"] for check in checks]

    with (
        ThreadPoolExecutor(10) as threads,
        httpx.Client(base_url=running_plane.url, verify=TLS_CONTEXT) as client,
    ):
        latencies = [each for found in threads.map(latency, [client] * 10) for each in found]

    assert len(latencies) == 200
    assert len(set(latencies)) <= int((time.monotonic() - began) / FRESH_SECONDS) + 2


class Slow:
    """Health check that runs until it is released, and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.released = asyncio.Event()

    async def run(self) -> Check:
        self.runs += 1
        await self.released.wait()
        return Check("slow", ok=True, message=f"run {self.runs}")


async def begin(checks: HealthChecks, count: int) -> list["asyncio.Task[list[Check]]"]:
    """Start requests for the results of all checks, and let them run until they wait."""
    tasks = [asyncio.create_task(checks.results()) for _ in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def clock_of(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the clock of the health checks by one that a test sets in `now`."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(health, "time", clock)
    return clock


def test_concurrent_readiness_requests_share_one_run_even_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch)

    async def scenario() -> None:
        slow = Slow()
        checks = HealthChecks({"slow": slow.run})
        tasks = await begin(checks, 50)
        clock.now += 2 * FRESH_SECONDS
        tasks += await begin(checks, 50)
        slow.released.set()
        assert {found.message for [found] in await asyncio.gather(*tasks)} == {"run 1"}
        assert slow.runs == 1

    asyncio.run(scenario())


def test_readiness_result_is_renewed_after_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch)

    async def scenario() -> None:
        slow = Slow()
        slow.released.set()
        checks = HealthChecks({"slow": slow.run})
        messages = []
        for seconds in (0, 0.9 * FRESH_SECONDS, 0.2 * FRESH_SECONDS, 0):
            clock.now += seconds
            messages.append((await checks.result("slow")).message)
        assert messages == ["run 1", "run 1", "run 2", "run 2"]

    asyncio.run(scenario())


def test_disconnected_readiness_request_does_not_cancel_the_checks_of_concurrent_readiness_requests() -> None:
    async def scenario() -> None:
        slow = Slow()
        checks = HealthChecks({"slow": slow.run})
        first, second = await begin(checks, 2)
        first.cancel()
        await asyncio.wait([first])
        slow.released.set()
        assert [found.message for found in await second] == ["run 1"]

    asyncio.run(scenario())
