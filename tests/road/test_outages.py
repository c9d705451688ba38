"""Tests that programs of the control plane continue after their database or Redis was unreachable, hung or lost its
data.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import redis
from psycopg import sql
from psycopg.conninfo import make_conninfo

from control_plane.api.requests import problem_types, problems
from control_plane.programs import SERVER
from control_plane.work.tables import RESEND
from deploy.embedded.children import Child, installed_program
from tests.api.node import (
    BEAT,
    QUEUE_PASSWORD,
    admit,
    allocate,
    as_node,
    enrol,
    register_node,
    renew,
    renewal,
)
from tests.api.streams import watch_events
from tests.servers.plane import TLS_CONTEXT, RunningPlane, free_port
from tests.servers.program_copies import run_copy
from tests.servers.redis import connect_as_node
from tests.waiting import until


def seconds_to_register(plane: RunningPlane) -> float:
    """Register a new node and return the seconds until the API responded."""
    began = time.monotonic()
    assert plane.client().post("/nodes", json={"id": f"n{uuid4().hex[:8]}"}).status_code == 201
    return time.monotonic() - began


@contextmanager
def stopped(plane: RunningPlane) -> Iterator[None]:
    plane.redis.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        plane.redis.process.send_signal(signal.SIGCONT)


def state_of_task(plane: RunningPlane) -> list[tuple[str]]:
    return plane.rows("select state from work.task")


def test_every_program_continues_after_its_database_connections_are_terminated(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    assert running_plane.database.cut() > 3
    until(lambda: allocate(running_plane).status_code == 202, "the API responds")
    until(lambda: state_of_task(running_plane) == [("sent",)], "the dispatcher has sent the task")
    allocation = running_plane.client().get
    until(
        lambda: len(allocation("/allocations").json()["items"]) == 1, "the projector has added the allocation"
    )
    last = running_plane.rows("select max(position) from ledger.event")[0][0]
    seen = watch_events(running_plane, f"/events/watch?after=position:{last - 1}", 1)
    assert [event.data["position"] for event in seen] == [last]


def test_api_without_database_returns_503_with_retry_after(running_plane: RunningPlane) -> None:
    name = sql.Identifier(running_plane.database.name)
    server = make_conninfo(running_plane.database.admin_dsn, dbname="postgres")
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("alter database {} with allow_connections false").format(name))
        try:
            running_plane.database.cut()
            client = running_plane.client()
            for path in ("/skus", "/allocations", "/events", "/slots?at=position:1", "/history/node/n1"):
                answer = client.get(path)
                assert (answer.status_code, answer.headers.get("retry-after")) == (503, "1"), answer.text
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["type"] == "/problems/database-unavailable"
        finally:
            admin.execute(sql.SQL("alter database {} with allow_connections true").format(name))
    until(lambda: _responds(running_plane), "the API responds")


def test_api_request_that_needs_an_unreadable_event_returns_503_with_the_events_position(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    allocation = allocate(running_plane).json()["id"]
    [(position,)] = running_plane.rows(
        "update ledger.event set type = 'allocation.enchanted' where type = 'allocation.placed' returning position"
    )
    answer = running_plane.client().get(f"/allocations/{allocation}")
    assert (answer.status_code, answer.headers.get("retry-after")) == (503, "1")
    assert answer.json()["type"] == "/problems/unreadable-event"
    assert f"position {position} " in answer.json()["detail"]


def test_node_enrols_and_renews_its_session_while_redis_is_unreachable(running_plane: RunningPlane) -> None:
    token = register_node(running_plane, "n1")
    running_plane.redis.process.kill()
    running_plane.redis.process.wait()
    assert enrol(running_plane, "n1", token).status_code == 200
    assert renew(running_plane, renewal("n1", 1, "second")).json()["number"] == 2
    assert as_node(running_plane, "n1", "second").post("/heartbeat", json=BEAT).status_code == 200
    assert running_plane.rows("select queue_number from work.node_session") == [(None,)]


def test_openapi_document_describes_every_problem_type(shared_plane: RunningPlane) -> None:
    described = httpx.get(f"{shared_plane.url}/openapi.json", verify=TLS_CONTEXT).json()
    answers = described["paths"]["/v1/events"]["get"]["responses"]
    descriptions = " ".join(answer["description"] for answer in answers.values())
    for kind in problem_types.ALL.values():
        assert f"{kind.url}:" in descriptions
        assert problems.MEDIA_TYPE in answers[str(kind.status)]["content"]


def test_hanging_redis_delays_no_api_response_and_the_task_is_sent_afterwards(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    with stopped(running_plane):
        assert allocate(running_plane).status_code == 202
        assert max(seconds_to_register(running_plane) for _ in range(3)) < 1
        due = "select 1 from work.task where due_at < clock_timestamp() - interval '6 s'"
        until(
            lambda: bool(running_plane.rows(due)),
            "the task is overdue for longer than the idle timeout of transactions",
        )
    until(lambda: state_of_task(running_plane) == [("sent",)], "the task is sent", 3 * RESEND.total_seconds())


def test_killed_redis_delays_no_api_response(running_plane: RunningPlane) -> None:
    running_plane.redis.process.kill()
    running_plane.redis.process.wait()
    assert max(seconds_to_register(running_plane) for _ in range(3)) < 1


def test_node_that_an_admin_allows_to_enrol_again_keeps_its_redis_user(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1")
    assert running_plane.client().post("/nodes/n1/enrolment").status_code == 201
    with redis.Redis.from_url(running_plane.redis.url) as admin:
        admin.acl_deluser("node-n1")
        admin.flushall()
        until(lambda: "node-n1" in _users(admin), "the Redis user of the node exists again")
    with connect_as_node(running_plane.redis.port, "n1", QUEUE_PASSWORD) as node:
        assert node.ping()


def _users(admin: redis.Redis) -> list[str]:
    return [str(user) for user in admin.acl_users()]


def test_api_that_receives_sigterm_finishes_a_request_in_flight(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    settings, port = running_plane.settings, free_port()
    environment = {
        "SLICEPLANE_DATABASE_URL": settings.database_url.get_secret_value(),
        "SLICEPLANE_REDIS_URL": settings.redis_url.get_secret_value(),
        "SLICEPLANE_SIGNING_KEY_FILE": str(settings.signing_key_file),
        "SLICEPLANE_LISTEN": f"127.0.0.1:{port}",
    }
    api = Child("api", installed_program(SERVER, "api"), tmp_path / "api.log", environment)
    api.start()
    try:
        second = replace(running_plane, url=f"http://127.0.0.1:{port}")
        until(lambda: _responds(second), "the second API responds")
        with ThreadPoolExecutor(1) as pool, psycopg.connect(running_plane.database.admin_dsn) as holding:
            holding.execute("lock table read.node in access exclusive mode")
            answer = pool.submit(second.client().post, "/nodes", json={"id": "n1"})
            until(lambda: bool(running_plane.rows(WAITING)), "the request waits")
            assert api.pid is not None
            os.kill(api.pid, signal.SIGTERM)
            until(lambda: not _responds(second), "the API accepts no new connection")
            holding.rollback()
            assert answer.result().status_code == 201
    finally:
        api.stop()


WAITING = "select 1 from pg_locks where not granted and relation = 'read.node'::regclass"


def _responds(plane: RunningPlane) -> bool:
    with suppress(httpx.TransportError):
        return plane.client().get("/skus").is_success
    return False


def test_issue_key_command_while_redis_is_unreachable_prints_only_a_valid_api_key(
    running_plane: RunningPlane,
) -> None:
    environment = {
        **os.environ,
        "SLICEPLANE_DATABASE_URL": running_plane.settings.database_url.get_secret_value(),
        "SLICEPLANE_REDIS_URL": "redis://127.0.0.1:1",
    }
    made = run_copy(installed_program(SERVER, "issue-key", "late"), environment)
    assert made.returncode == 0, made.stderr
    assert "redis_wake_up_not_published" in made.stderr
    [key] = made.stdout.splitlines()
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx.get(f"{running_plane.url}/v1/skus", headers=headers, verify=TLS_CONTEXT).is_success
