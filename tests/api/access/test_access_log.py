"""Tests of the access log: every request has a row before it changes anything, and the row gets its true outcome."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from control_plane.api.requests import rate_limits
from control_plane.work import access_rows
from deploy.embedded.postgres import PostgresServer
from tests.api.access.principals import client_of, create_project, issue, session_of
from tests.api.api_process import api_process
from tests.api.node import BEAT, admit, as_node, enrol, register_node
from tests.api.streams import open_stream
from tests.servers.plane import TLS_CONTEXT, RunningPlane, running
from tests.waiting import until

Row = dict[str, Any]


def listed(plane: RunningPlane, **which: str) -> list[Row]:
    """Return the rows that the API lists, newest first, without the requests that read the access log."""
    with plane.client() as client:
        answer = client.get("/access-log", params={"limit": 500, **which})
    assert answer.status_code == 200, answer.text
    return [row for row in answer.json()["items"] if row["route"] != "/v1/access-log"]


def row_of(plane: RunningPlane, answer: httpx.Response) -> Row:
    """Wait for the complete row of an answered request, and return it as the API lists it."""
    request_id = answer.headers["x-request-id"]

    def positions() -> list[tuple[int]]:
        # By SQL, because each request to the API adds a row too.
        complete = "select position from work.access where request_id = %(id)s and position is not null"
        return plane.rows(complete, id=request_id)

    until(lambda: bool(positions()), "the row of the request is complete")
    [(position,)] = positions()
    with plane.client() as client:
        answer = client.get("/access-log", params={"cursor": position + 1, "limit": 1})
    row: Row = answer.json()["items"][0]
    assert row["request_id"] == request_id
    return row


def stored(plane: RunningPlane, condition: str) -> list[tuple[Any, ...]]:
    return plane.rows(
        f"select path, outcome, status, count, position from work.access where {condition} order by opened_at"
    )


def test_access_log_row_of_a_change_has_its_principal_credential_source_and_outcome(
    shared_plane: RunningPlane,
) -> None:
    key = issue(shared_plane, "root", "admin")
    with client_of(shared_plane, key) as client:
        answer = client.post("/projects", json={"id": "recorded"})
    row = row_of(shared_plane, answer)
    assert {name: row[name] for name in ("method", "route", "path", "status", "outcome", "count")} == {
        "method": "POST",
        "route": "/v1/projects",
        "path": "/v1/projects",
        "status": 201,
        "outcome": "completed",
        "count": 1,
    }
    assert (row["principal"], row["credential"], row["source"]) == (f"key:{key.id}", key.id, "127.0.0.1")
    assert row["reasons"] == []
    assert row["duration_ms"] >= 0
    everything = shared_plane.rows("select string_agg(access::text, '') from work.access")
    assert key.secret not in str(everything)


def test_event_has_the_client_address_of_the_request_that_caused_it(shared_plane: RunningPlane) -> None:
    with shared_plane.client() as client:
        answer = client.post("/projects", json={"id": "caused"})
        [event] = client.get("/events", params={"stream": "project-caused"}).json()["items"]
    assert event["reason"] == f"POST /v1/projects {answer.headers['x-request-id']} from 127.0.0.1"


@pytest.mark.parametrize(
    ("request_line", "body", "expected"),
    [
        ("GET /allocations/alc-0000000000000000000000000a", None, (404, "unknown_allocation", "/v1/allocations/{allocation}")),
        ("GET /nowhere", None, (404, "not_found", None)),
        ("DELETE /projects", None, (405, "method_not_allowed", "/v1/projects")),
        ("GET /nodes?colour=red", None, (422, "unknown_parameter", "/v1/nodes")),
        ("POST /projects", b'{"id": 7}', (422, "wrong_type", "/v1/projects")),
        ("POST /projects", b'{"id"', (400, "invalid_json", "/v1/projects")),
        ("POST /projects", b" " * 300_000, (413, "content_too_large", "/v1/projects")),
    ],
)  # fmt: skip
def test_refused_request_has_one_access_log_row_with_its_status_route_and_reason(
    shared_plane: RunningPlane, request_line: str, body: bytes | None, expected: tuple[int, str, str | None]
) -> None:
    method, path = request_line.split()
    with shared_plane.client() as client:
        answer = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    row = row_of(shared_plane, answer)
    assert row["outcome"] == "refused"
    assert (row["status"], row["reasons"], row["route"]) == (expected[0], [expected[1]], expected[2])
    assert answer.status_code == expected[0]


@pytest.mark.parametrize(
    ("authorization", "reason"), [(None, "no_credentials"), ("Bearer sp_unknown", "unknown_key")]
)
def test_request_without_valid_credentials_has_an_access_log_row_without_principal_when_it_is_answered(
    shared_plane: RunningPlane, authorization: str | None, reason: str
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = httpx.get(f"{shared_plane.url}/v1/nodes", headers=headers, verify=TLS_CONTEXT)
    [(outcome, principal, credential, reasons)] = shared_plane.rows(
        "select outcome, principal, credential, reasons from work.access where request_id = %(id)s",
        id=answer.headers["x-request-id"],
    )
    assert (outcome, principal, credential, reasons) == ("refused", None, None, [reason])


def test_access_log_row_of_a_request_with_a_revoked_key_has_the_key_id_and_no_principal(
    shared_plane: RunningPlane,
) -> None:
    key = issue(shared_plane, "lost", "admin")
    with shared_plane.client() as admin:
        admin.post(f"/keys/{key.id}/revoke", json={"reason": "lost"})
    with client_of(shared_plane, key) as client:
        row = row_of(shared_plane, client.get("/nodes"))
    assert (row["principal"], row["credential"], row["reasons"]) == (None, key.id, ["key_revoked"])


def test_access_log_row_of_a_request_that_the_role_does_not_permit_has_the_principal(
    shared_plane: RunningPlane,
) -> None:
    create_project(shared_plane, "small")
    key = issue(shared_plane, "small", projects=["small"])
    with client_of(shared_plane, key) as client:
        answer = client.get("/access-log")
        row = row_of(shared_plane, client.get("/nodes"))
    assert answer.status_code == 403
    assert (row["principal"], row["status"], row["reasons"]) == (f"key:{key.id}", 403, ["role_missing"])


def test_auditor_reads_the_access_log(shared_plane: RunningPlane) -> None:
    with client_of(shared_plane, issue(shared_plane, "auditor", "auditor")) as auditor:
        assert auditor.get("/access-log").is_success


def test_access_log_row_of_a_watch_is_open_while_the_watch_lasts_and_aborted_when_its_client_disconnects(
    shared_plane: RunningPlane,
) -> None:
    def watches(**which: str) -> list[Row]:
        return [row for row in listed(shared_plane, **which) if row["route"] == "/v1/events/watch"]

    before = len(watches())
    with open_stream(shared_plane, "/events/watch") as stream:
        stream.take(1)
        [row] = watches(outcome="open")
        assert (row["outcome"], row["position"], row["status"]) == (None, None, None)
    until(lambda: len(watches()) == before + 1, "the row of the watch is complete")
    assert (watches()[0]["outcome"], watches()[0]["status"]) == ("aborted", 200)
    assert watches(outcome="open") == []


def test_access_log_row_of_a_head_request_has_the_method_head_and_its_outcome(
    shared_plane: RunningPlane,
) -> None:
    with shared_plane.client() as client:
        row = row_of(shared_plane, client.head("/nodes"))
    assert (row["method"], row["route"], row["outcome"]) == ("HEAD", "/v1/nodes", "completed")


def test_access_log_has_the_path_of_a_request_without_decoding_and_cut_at_256_characters(
    shared_plane: RunningPlane,
) -> None:
    with shared_plane.client() as client:
        row = row_of(shared_plane, client.get("/nodes/%00%ff" + "x" * 1000))
    assert row["path"].startswith("/v1/nodes/%00%")
    assert len(row["path"]) == 256


def encoded(text: str, times: int) -> str:
    """Return the text with every character percent-encoded, several times."""
    found = "".join(f"%{byte:02x}" for byte in text.encode())
    return found if times == 1 else found.replace("%", "%25" if times == 2 else "%2525")


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize(
    "secret",
    [
        f"sp_{'a-_0' * 10}",
        f"ss_{'a-_0' * 10}",
        f"enrol_{'a-_0' * 10}",
        "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0xxxx.c2lnbmF0dXJl",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----\n",
    ],
)
def test_access_log_has_a_path_with_an_encoded_secret_decoded_and_without_the_secret(
    shared_plane: RunningPlane, secret: str, times: int
) -> None:
    with shared_plane.client() as client:
        row = row_of(shared_plane, client.get(f"/absent%20/{encoded(secret, times)}"))
    assert row["path"] == "/v1/absent /[secret]"


@pytest.mark.parametrize("prefix", ["%73p_", "s%70_", "sp%5F", "sp%5f", "%2573p_"])
def test_secret_with_one_encoded_character_in_a_path_is_not_in_the_access_log(
    shared_plane: RunningPlane, prefix: str
) -> None:
    with shared_plane.client() as client:
        row = row_of(shared_plane, client.get(f"/keys/{prefix}{'a-_0' * 10}"))
    assert row["path"] == "/v1/keys/[secret]"


def test_health_checks_are_not_in_the_access_log(shared_plane: RunningPlane) -> None:
    for path in ("/healthz", "/readyz", "/readyz/no-such-check"):
        httpx.get(f"{shared_plane.url}{path}", verify=TLS_CONTEXT)
    with shared_plane.client() as client:
        row_of(shared_plane, client.get("/nodes"))
    assert stored(shared_plane, "path ~ '^/(healthz|readyz)'") == []


def test_access_log_filters_select_rows_by_each_field_and_by_time(shared_plane: RunningPlane) -> None:
    key = issue(shared_plane, "filtered", "admin")
    with client_of(shared_plane, key) as client:
        made = row_of(shared_plane, client.post("/projects", json={"id": "filtered"}))
        shown = row_of(shared_plane, client.get("/projects/filtered"))
        lost = row_of(shared_plane, client.get("/projects/lost"))
    own = {"principal": f"key:{key.id}"}
    ids = [row["request_id"] for row in (lost, shown, made)]

    def found(**which: str) -> list[str]:
        return [row["request_id"] for row in listed(shared_plane, **own, **which)]

    assert found() == ids
    assert found(request_id=ids[1]) == ids[1:2]
    assert found(method="POST") == ids[2:]
    assert found(route="/v1/projects/{project}") == ids[:2]
    assert found(outcome="refused") == ids[:1]
    assert found(source="127.0.0.1") == ids
    assert found(source="127.0.0.2") == []
    assert found(**{"from": shown["opened_at"]}) == ids[:2]
    assert found(to=made["opened_at"]) == ids[2:]


@pytest.mark.parametrize(
    ("parameters", "code"),
    [({"from": "position:7"}, "invalid_value"), ({"outcome": "lost"}, "unknown_value"), ({"after": "x"}, "invalid_cursor")],
)  # fmt: skip
def test_access_log_filter_with_an_invalid_value_is_refused(
    shared_plane: RunningPlane, parameters: dict[str, str], code: str
) -> None:
    with shared_plane.client() as client:
        answer = client.get("/access-log", params=parameters)
    assert answer.status_code == 422
    assert [reason["code"] for reason in answer.json()["reasons"]] == [code]


def test_access_log_pages_in_both_directions_contain_each_row_once(shared_plane: RunningPlane) -> None:
    with shared_plane.client() as client:
        last = row_of(shared_plane, [client.get("/skus") for _ in range(10)][-1])["position"]
        backwards = pages(client, last + 1)
        forwards = pages(client, last + 1, order="asc")
    positions = [
        position
        for (position,) in shared_plane.rows(
            "select position from work.access where position <= %(last)s order by 1", last=last
        )
    ]
    assert [row["position"] for row in forwards] == positions
    assert [row["position"] for row in backwards] == positions[::-1]


def pages(client: httpx.Client, end: int, **parameters: str) -> list[Row]:
    """Read the access log in pages of three rows, and return all rows before position `end`."""
    found: list[Row] = []
    cursor: str | None = None if parameters else str(end)
    while True:
        given = {**parameters, "limit": "3"} | ({} if cursor is None else {"cursor": cursor})
        page = client.get("/access-log", params=given).json()
        found += [row for row in page["items"] if row["position"] < end]
        cursor = page["next_cursor"]
        if cursor is None or (parameters and int(cursor) >= end):
            return found


def test_access_log_has_heartbeats_only_if_they_are_refused_and_enrolments_always(
    shared_plane: RunningPlane,
) -> None:
    node = admit(shared_plane, "beating")
    assert node.post("/heartbeat", json=BEAT).is_success
    refused = as_node(shared_plane, "beating", "wrong").post("/heartbeat", json=BEAT)
    assert row_of(shared_plane, refused)["reasons"] == ["unknown_node"]
    assert [row[2] for row in stored(shared_plane, "route = '/v1/agent/heartbeat'")] == [401]
    assert stored(shared_plane, "route = '/v1/agent/reports'") == []
    [enrolment] = listed(shared_plane, principal="node:beating")
    assert (enrolment["route"], enrolment["credential"]) == ("/v1/agent/enroll", "beating/1")


def test_every_request_of_a_node_is_in_the_access_log_if_the_setting_requires_it(
    postgres_server: PostgresServer,
) -> None:
    with running(postgres_server, audit_nodes="all") as plane:
        node = admit(plane, "n1")
        row = row_of(plane, node.post("/heartbeat", json=BEAT))
        assert (row["principal"], row["outcome"]) == ("node:n1", "completed")
        reports = listed(plane, route="/v1/agent/reports")
        assert [(row["principal"], row["credential"]) for row in reports] == [("node:n1", "n1/1")]


def test_access_log_samples_reads_but_always_records_changes_and_refusals(
    postgres_server: PostgresServer,
) -> None:
    with running(postgres_server, audit_reads=0.0) as plane, plane.client() as client:
        assert client.get("/nodes").is_success
        with open_stream(plane, "/events/watch") as stream:
            stream.take(1)
        refused = row_of(plane, client.get("/nodes/lost"))
        changed = row_of(plane, client.post("/projects", json={"id": "changed"}))
        assert {row["request_id"] for row in listed(plane)} == {refused["request_id"], changed["request_id"]}


def test_access_log_records_the_fraction_of_reads_that_the_setting_states(
    postgres_server: PostgresServer,
) -> None:
    with running(postgres_server, audit_reads=0.5) as plane, plane.client() as client:
        for _ in range(200):
            client.get("/skus")
        row_of(plane, client.get("/nodes/lost"))
        assert 60 < len(stored(plane, "route = '/v1/skus'")) < 140


def test_forwarded_client_address_is_used_only_if_the_proxy_is_trusted(
    postgres_server: PostgresServer,
) -> None:
    forged = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7"}
    trusted = (IPv4Network("127.0.0.0/8"),)
    with running(postgres_server, trusted_proxies=trusted) as plane, plane.client(**forged) as client:
        assert row_of(plane, client.get("/nodes"))["source"] == "198.51.100.7"


def test_forwarded_address_from_a_client_that_is_not_a_trusted_proxy_is_ignored(
    shared_plane: RunningPlane,
) -> None:
    with shared_plane.client(**{"X-Forwarded-For": "203.0.113.9"}) as client:
        assert row_of(shared_plane, client.get("/nodes"))["source"] == "127.0.0.1"


def test_requests_of_a_source_without_credentials_are_counted_in_one_access_log_row_after_sixty_rows(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    with api_process(running_plane, tmp_path / "api.log") as api:
        with httpx.Client(verify=TLS_CONTEXT) as anonymous:
            for _ in range(75):
                assert anonymous.get(f"{api.plane.url}/v1/nodes").status_code == 401
            for _ in range(5):
                assert anonymous.get(f"{api.plane.url}/v1/skus").status_code == 401
        mine = "principal is null and process = (select process from work.access where count = 15)"
        counts = [(count, position is None) for _, _, _, count, position in stored(running_plane, mine)]
        assert sorted(counts) == [(1, False)] * 60 + [(5, True), (15, True)]
        with api.plane.client() as client:
            row_of(running_plane, client.get("/nodes"))
        api.child.stop()
        counts = [(count, position is None) for _, _, _, count, position in stored(running_plane, mine)]
        assert sorted(counts) == [(1, False)] * 60 + [(5, False), (15, False)]


def test_refusals_by_a_principals_quota_are_counted_in_one_access_log_row_after_sixty_rows_of_all_its_sessions(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "HOLD_SECONDS", 0.0)
    with running(postgres_server, requests_per_minute=30) as plane:
        key = issue(plane, "flooding", "auditor")
        # A session sends fewer requests than the quota, so that only the quota of the principal refuses them.
        sessions = [session_of(plane, key.secret) for _ in range(8)]
        refused = 0
        for session in sessions:
            with client_of(plane, session) as client:
                refused += sum(client.get("/nodes").status_code == 429 for _ in range(20))
        assert refused >= 100
        of_quota = "select count, path, credential, source from work.access where principal = %(principal)s and status = 429"
        rows = plane.rows(of_quota, principal=f"key:{key.id}")
    assert sum(row[0] for row in rows) == refused
    [counting] = [row for row in rows if row[0] > 1]
    assert (len(rows), counting) == (61, (refused - 60, "", None, None))
    assert {row[2] for row in rows} - {None} <= {session.id for session in sessions}


def test_refused_enrolments_of_a_source_are_counted_in_one_access_log_row_and_no_row_stays_open(
    running_plane: RunningPlane,
) -> None:
    enrolments = "route = '/v1/agent/enroll'"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: enrol(running_plane, "n1", "a-token-of-no-node"), range(80)))
    assert {answer.status_code for answer in answers} == {401}
    until(
        lambda: (
            sum(row[3] for row in stored(running_plane, enrolments))
            == 80
            == 60 + max(row[3] for row in stored(running_plane, enrolments))
        ),
        "every enrolment is counted",
    )
    assert len(stored(running_plane, enrolments)) == 61
    assert enrol(running_plane, "n2", register_node(running_plane, "n2")).is_success
    until(
        lambda: (
            [row[1] for row in stored(running_plane, f"{enrolments} and principal = 'node:n2'")]
            == ["completed"]
        ),
        "the enrolment has a row of its own",
    )


def test_access_log_row_is_open_before_the_handler_of_its_request_changes_anything(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    stopped = {"SLICEPLANE_FAILPOINTS": "stop:handle.before_append"}
    with api_process(running_plane, tmp_path / "api.log", **stopped) as api, ThreadPoolExecutor(1) as pool:
        client = api.plane.client()
        sent = pool.submit(client.post, "/projects", json={"id": "late"})
        is_open = (
            "route = '/v1/projects' and outcome is null and position is null and principal ~ '^key:test-'"
        )
        assert api.child.pid is not None
        status = Path(f"/proc/{api.child.pid}/status")
        until(lambda: "State:\tT (stopped)" in status.read_text(), "the process has stopped at the failpoint")
        assert len(stored(running_plane, is_open)) == 1
        assert running_plane.rows("select 1 from ledger.event where stream_id = 'project-late'") == []
        os.kill(api.child.pid, signal.SIGCONT)
        answer = sent.result(20)
    assert answer.status_code == 201
    assert row_of(running_plane, answer)["outcome"] == "completed"


@pytest.mark.parametrize(("failpoint", "events"), [("handle.before_commit", 0), ("handle.committed", 1)])
def test_access_log_row_of_a_request_to_a_killed_api_process_becomes_interrupted_with_or_without_an_effect(
    running_plane: RunningPlane, tmp_path: Path, failpoint: str, events: int
) -> None:
    with (
        api_process(running_plane, tmp_path / "api.log", SLICEPLANE_FAILPOINTS=failpoint) as api,
        pytest.raises(httpx.TransportError),
    ):
        api.plane.client().post("/projects", json={"id": "killed"})
    assert len(running_plane.rows("select 1 from ledger.event where stream_id = 'project-killed'")) == events
    until(lambda: bool(listed(running_plane, outcome="interrupted")), "the row is closed")
    [row] = listed(running_plane, outcome="interrupted")
    assert (row["route"], row["status"]) == ("/v1/projects", None)
    assert row["position"] is not None


def test_open_access_log_row_of_a_living_process_that_lost_its_database_connection_is_not_closed(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    with (
        api_process(running_plane, tmp_path / "api.log") as api,
        open_stream(api.plane, "/events/watch") as stream,
        api.plane.client() as client,
    ):
        stream.take(1)
        running_plane.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'access log'"
        )
        until(
            lambda: client.post("/projects", json={"id": "after"}).status_code == 409, "the log is writable"
        )
        assert ended_processes(running_plane) == set()
        [row] = listed(running_plane, outcome="open", method="GET")
        assert row["route"] == "/v1/events/watch"


def ended_processes(plane: RunningPlane) -> set[UUID]:
    """Return the processes that an API process considers ended; it would close their open rows as interrupted."""

    async def missing() -> set[UUID]:
        async with await access_rows.connect(plane.database.app_dsn) as conn:
            return await access_rows.missing_processes(conn, UUID(int=0))

    return asyncio.run(missing())


def test_access_log_row_of_a_failed_request_has_the_status_of_its_response(
    running_plane: RunningPlane,
) -> None:
    with psycopg.connect(running_plane.database.admin_dsn) as conn, running_plane.client() as client:
        conn.execute("alter table read.project rename column description to absent")
        conn.commit()
        assert client.get("/projects").status_code == 500
    until(lambda: bool(listed(running_plane, outcome="failed")), "the row is complete")
    [row] = listed(running_plane, outcome="failed")
    assert (row["route"], row["status"], row["reasons"]) == ("/v1/projects", 500, ["internal_error"])


def test_change_request_waits_for_its_access_log_row_while_the_access_log_is_locked(
    running_plane: RunningPlane,
) -> None:
    lock = threading.Event()
    locked = threading.Event()

    def hold() -> None:
        with psycopg.connect(running_plane.database.admin_dsn) as conn:
            conn.execute("lock table work.access in exclusive mode")
            locked.set()
            lock.wait(20)

    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(hold)
        assert locked.wait(20)
        with running_plane.client() as client:
            sent = pool.submit(client.post, "/projects", json={"id": "waiting"})
            until(running_plane.has_lock_waiter, "the row waits for the lock")
            assert running_plane.rows("select 1 from ledger.event where stream_id = 'project-waiting'") == []
            lock.set()
            holding.result(20)
            assert sent.result(20).status_code == 201


def test_access_log_rows_beyond_the_maximum_and_old_rows_are_deleted_and_newer_rows_kept(
    postgres_server: PostgresServer,
) -> None:
    with running(postgres_server, audit_rows=1000, audit_days=1.0) as plane:
        plane.rows(
            "with head as (update work.access_head set position = position + 5000 returning position - 5000 as before)"
            " insert into work.access (request_id, process, opened_at, method, path, reasons, count, outcome, position)"
            " select 'req-' || n, gen_random_uuid(), clock_timestamp() - case when n > 4500 then interval '2 days' else"
            " interval '0' end, 'GET', '/', '{}', 1, 'completed', head.before + n from head, generate_series(1, 5000) n"
            " returning 1"
        )
        until(
            lambda: (
                plane.rows("select count(*) from work.access where request_id ~ '^req-[0-9]{1,4}$'")[0][0]
                <= 500
            ),
            "the rows are deleted",
        )
        [(first, last)] = plane.rows(
            "select min(substr(request_id, 5)::int), max(substr(request_id, 5)::int) from work.access"
            " where request_id ~ '^req-[0-9]{1,4}$'"
        )
        assert (first > 4000, last) == (True, 4500)


def test_request_has_one_access_log_row_when_the_connections_to_the_database_are_cut(
    running_plane: RunningPlane,
) -> None:
    with running_plane.client() as client:
        for number in range(5):
            running_plane.database.cut()
            until(
                lambda: client.post("/projects", json={"id": f"cut-{number}"}).status_code in (201, 409),  # noqa: B023 (called at once)
                "the request is answered",
            )
        row_of(running_plane, client.get("/nodes"))
    causes = running_plane.rows(
        "select access.outcome, count(*) from ledger.event left join work.access"
        " on event.reason ~ access.request_id where stream_id ~ '^project-cut-' group by event.position, 1"
    )
    assert sorted(causes) == [("completed", 1)] * 5
