"""Tests of the last use of API keys: which requests count as a use, and when the last use is stored."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from control_plane.api.audit.credential_uses import CredentialUses
from control_plane.database import engine_of
from control_plane.work.credential_uses import Use, store
from deploy.embedded.postgres import PostgresServer
from tests.api.access.principals import Key, client_of, issue
from tests.api.api_process import api_process
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

STORED = "select used_at, source from work.credential_use where credential = %(id)s"


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """Control plane that writes the last use of keys every 0.05 s, and trusts a proxy on this machine."""
    proxies = (IPv4Network("127.0.0.1/32"),)
    with running(postgres_server, credential_use_seconds=0.05, trusted_proxies=proxies) as made:
        yield made


def shown(plane: RunningPlane, key: Key) -> dict[str, Any]:
    with plane.client() as admin:
        found: dict[str, Any] = admin.get(f"/keys/{key.id}").json()
        listed = admin.get("/keys", params={"limit": 500}).json()["items"]
    [same] = [each for each in listed if each["id"] == key.id]
    assert same.keys() == found.keys()
    return found


def source_of(plane: RunningPlane, key: Key) -> str | None:
    source: str | None = shown(plane, key)["last_used_from"]
    return source


def test_last_use_of_an_api_key_has_the_time_and_source_of_its_last_authenticated_request(
    plane: RunningPlane,
) -> None:
    key, unused = issue(plane, "used", "auditor"), issue(plane, "unused", "auditor")
    began = datetime.now(UTC)
    with client_of(plane, key) as caller:
        assert caller.get("/nodes", headers={"X-Forwarded-For": "192.0.2.1"}).is_success
        until(lambda: source_of(plane, key) == "192.0.2.1", "the use is written")
        first = datetime.fromisoformat(shown(plane, key)["last_used_at"])
        assert began - timedelta(seconds=1) < first < datetime.now(UTC) + timedelta(seconds=1)
        # A refused request is a use: the credential is valid. A watch is one from its beginning.
        refused = caller.delete("/nodes/none", headers={"X-Forwarded-For": "192.0.2.2"})
        assert refused.status_code == 403
        until(lambda: source_of(plane, key) == "192.0.2.2", "the refused use is written")
        with caller.stream("GET", "/events/watch", headers={"X-Forwarded-For": "192.0.2.3"}) as watch:
            assert watch.is_success
            until(lambda: source_of(plane, key) == "192.0.2.3", "the use by the watch is written")
        assert datetime.fromisoformat(shown(plane, key)["last_used_at"]) > first
        with plane.client() as admin:
            assert admin.post(f"/keys/{key.id}/revoke", json={"reason": "lost"}).is_success
        assert caller.get("/nodes", headers={"X-Forwarded-For": "192.0.2.4"}).status_code == 401
    other = issue(plane, "other", "auditor")
    with client_of(plane, other) as caller:
        assert caller.get("/nodes").is_success
    until(lambda: source_of(plane, other) is not None, "a later use is written")
    assert source_of(plane, key) == "192.0.2.3"
    assert (shown(plane, unused)["last_used_at"], shown(plane, unused)["last_used_from"]) == (None, None)


def test_last_uses_of_api_keys_that_are_not_written_yet_are_written_when_the_process_stops(
    plane: RunningPlane, tmp_path: Path
) -> None:
    key = issue(plane, "last", "auditor")
    with (
        api_process(plane, tmp_path / "api.log", SLICEPLANE_CREDENTIAL_USE_SECONDS="1800") as api,
        client_of(api.plane, key) as caller,
    ):
        assert caller.get("/nodes").is_success
        assert plane.rows(STORED, id=key.id) == []
    assert [source for _, source in plane.rows(STORED, id=key.id)] == ["127.0.0.1"]


def test_earlier_use_of_an_api_key_does_not_replace_the_stored_later_use(plane: RunningPlane) -> None:
    async def run() -> None:
        engine, now = engine_of(plane.settings.database_url.get_secret_value(), 1), time.monotonic()
        for use in (Use(now - 10, "new"), Use(now - 20, "old")):
            async with engine.begin() as conn:
                await store(conn, {"of-two-processes": use})
        await engine.dispose()

    asyncio.run(run())
    [(used_at, source)] = plane.rows(STORED, id="of-two-processes")
    assert source == "new"
    assert timedelta(seconds=9) < datetime.now(UTC) - used_at < timedelta(seconds=19)


def test_last_uses_of_api_keys_are_written_after_a_failed_write_with_the_latest_use_of_each_key(
    plane: RunningPlane,
) -> None:
    def waits() -> bool:
        query = "select 1 from pg_stat_activity where application_name = 'uses' and wait_event_type = 'Lock'"
        return bool(plane.rows(query))

    def is_late() -> bool:
        return "times_of_credential_use_not_stored" in [line["event"] for line in lines]

    async def run() -> None:
        url = plane.settings.database_url.get_secret_value()
        engine = engine_of(f"{url}&application_name=uses", 1)
        uses = CredentialUses(engine, 0.01)
        with psycopg.connect(plane.database.admin_dsn) as locking:
            locking.execute("lock table work.credential_use in access exclusive mode")
            for credential in ("waiting", "also-waiting"):
                uses.note(credential, "192.0.2.1")
            writing = asyncio.create_task(uses.run())
            await asyncio.to_thread(until, waits, "the write waits")
            uses.note("waiting", "192.0.2.2")
            plane.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'uses'"
            )
            await asyncio.to_thread(until, is_late, "the write has failed")
        await asyncio.to_thread(until, lambda: bool(plane.rows(STORED, id="waiting")), "the uses are written")
        writing.cancel()
        await asyncio.wait([writing])
        await engine.dispose()

    with capture_logs() as lines:
        asyncio.run(run())
    for credential, expected in (("waiting", "192.0.2.2"), ("also-waiting", "192.0.2.1")):
        assert [source for _, source in plane.rows(STORED, id=credential)] == [expected]
