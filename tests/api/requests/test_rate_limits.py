"""Tests of the limits of requests: by principal, by project and by address, in one and in several API processes."""

import asyncio
import json
import math
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from statistics import median
from uuid import uuid4

import httpx
import psycopg
import pytest

from control_plane.api.audit import access_log
from control_plane.api.requests import rate_limits
from control_plane.api.requests.rate_limits import AT_ONCE, HOLD_SECONDS, PACE, UNDELAYED
from control_plane.api.requests.rate_windows import REDIS_SECONDS
from deploy.embedded.postgres import PostgresServer
from tests.api.access.principals import Key, client_of, create_project, issue, session_of
from tests.api.api_process import api_process
from tests.api.node import admit
from tests.servers.plane import TLS_CONTEXT, RunningPlane, running
from tests.waiting import until

LIMIT = 40
OF_PROJECT = 60
NO_CREDENTIALS = 10


@pytest.fixture(scope="module")
def limited(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """Control plane with low limits per minute. Each test uses its own keys, projects and addresses."""
    with running(postgres_server, requests_per_minute=LIMIT, project_requests_per_minute=OF_PROJECT) as plane:
        yield plane


def new_key(plane: RunningPlane, project: str | None = None) -> Key:
    """Issue a key of a caller of a project, by default of a new project."""
    if project is None:
        create_project(plane, project := f"p-{uuid4().hex[:12]}")
    return issue(plane, "limited", projects=[project])


def statuses(client: httpx.Client, requests: int) -> Counter[int]:
    return Counter(client.get("/whoami").status_code for _ in range(requests))


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def test_response_headers_state_the_quotas_of_the_principal_and_its_project_and_the_remaining_requests(
    limited: RunningPlane,
) -> None:
    with client_of(limited, new_key(limited)) as caller:
        answers = [caller.get(path) for path in ("/whoami", "/allocations", "/nodes", "/allocations/alc-x")]
    assert [each.status_code for each in answers] == [200, 200, 403, 404]
    assert {each.headers["RateLimit-Policy"] for each in answers} == {
        '"principal";q=40;w=60, "project";q=60;w=60'
    }
    assert answers[0].headers["RateLimit"] == '"principal";r=39;t=60, "project";r=59;t=60'
    assert '"principal";r=36;t=' in answers[3].headers["RateLimit"]
    with limited.client() as admin:
        assert admin.get("/whoami").headers["RateLimit-Policy"] == '"principal";q=40;w=60'


def test_request_beyond_the_limit_is_refused_with_the_time_until_the_next_request_is_admitted(
    limited: RunningPlane,
) -> None:
    with client_of(limited, new_key(limited)) as caller:
        assert statuses(caller, LIMIT) == {200: LIMIT}
        refused = caller.get("/whoami")
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"].endswith("throttled")
    assert codes(refused) == ["rate_limited"]
    wait = int(refused.headers["Retry-After"])
    assert 50 <= wait <= 60
    assert refused.headers["RateLimit-Policy"] == '"principal";q=40;w=60'
    assert refused.headers["RateLimit"] == f'"principal";r=0;t={wait}'
    assert f"retry in {wait} s" in refused.json()["detail"]


def test_principal_beyond_its_request_limit_uses_no_quota_of_other_principals_of_its_project(
    limited: RunningPlane,
) -> None:
    create_project(limited, "shared")
    first, second, third = (new_key(limited, "shared") for _ in range(3))
    with client_of(limited, first) as flooding, client_of(limited, second) as other:
        assert statuses(flooding, LIMIT + AT_ONCE) == {200: LIMIT, 429: AT_ONCE}
        assert statuses(other, OF_PROJECT - LIMIT) == {200: OF_PROJECT - LIMIT}
        refused = other.get("/whoami")
        assert refused.headers["RateLimit"].endswith(f'"project";r=0;t={refused.headers["Retry-After"]}')
        assert "project shared" in refused.json()["detail"]
    with client_of(limited, third) as third_of_project, client_of(limited, new_key(limited)) as outsider:
        assert statuses(third_of_project, 1) == {429: 1}
        assert statuses(outsider, 1) == {200: 1}


def test_request_limit_counts_requests_refused_for_their_role_but_no_requests_of_nodes_and_health_checks(
    limited: RunningPlane,
) -> None:
    node = admit(limited, f"n-{uuid4().hex[:8]}")
    for path in ("/healthz", "/readyz"):
        assert "RateLimit" not in httpx.get(f"{limited.url}{path}", verify=TLS_CONTEXT).headers
    answer = httpx.get(
        f"{limited.url}/v1/agent/desired-state",
        headers={"Authorization": node.headers["authorization"]},
        verify=TLS_CONTEXT,
    )
    assert "RateLimit" not in answer.headers
    with client_of(limited, new_key(limited)) as caller:
        assert [caller.get("/nodes").status_code for _ in range(LIMIT)] == [403] * LIMIT
        assert caller.get("/nodes").status_code == 429


def test_two_api_processes_together_admit_no_more_requests_than_the_limit(
    limited: RunningPlane, tmp_path: Path
) -> None:
    key = new_key(limited)
    with (
        api_process(limited, tmp_path / "api.log") as second,
        client_of(limited, key) as here,
        client_of(second.plane, key) as there,
    ):
        found = statuses(here, LIMIT // 2) + statuses(there, LIMIT // 2 + AT_ONCE)
        assert found == {200: LIMIT, 429: AT_ONCE}
        assert statuses(here, 10) == {429: 10}


def test_concurrent_requests_are_admitted_up_to_the_limit_and_refused_beyond_the_limit(
    limited: RunningPlane,
) -> None:
    key = new_key(limited)

    async def all_at_once() -> Counter[int]:
        async with httpx.AsyncClient(
            base_url=f"{limited.url}/v1", headers=key.headers, timeout=60, verify=TLS_CONTEXT
        ) as client:
            answers = await asyncio.gather(*(client.get("/whoami") for _ in range(3 * LIMIT)))
        return Counter(each.status_code for each in answers)

    assert asyncio.run(all_at_once()) == {200: LIMIT, 429: 2 * LIMIT}


def test_principal_that_waits_as_long_as_retry_after_states_is_admitted_again(
    postgres_server: PostgresServer,
) -> None:
    # Four requests in two seconds, so that a slow machine reaches the limit too; without a limit of projects
    with (
        running(postgres_server, requests_per_minute=120, request_window_seconds=2) as plane,
        client_of(plane, new_key(plane)) as caller,
    ):
        assert caller.get("/whoami").headers["RateLimit-Policy"] == '"principal";q=4;w=2'
        refused: list[httpx.Response] = []

        def is_refused() -> bool:
            answer = caller.get("/whoami")
            refused[:] = [answer]
            return answer.status_code == 429

        until(is_refused, "the limit is reached", 10)
        announced = time.monotonic() + int(refused[0].headers["Retry-After"])
        until(lambda: time.monotonic() > announced, "the announced time is over", 10)
        assert caller.get("/whoami").status_code == 200


def limit_events(log: Path) -> Counter[str]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return Counter(each["event"] for each in lines if each["event"].startswith("request_limits_"))


@contextmanager
def hanging_redis(plane: RunningPlane) -> Iterator[None]:
    plane.redis.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        plane.redis.process.send_signal(signal.SIGCONT)


def test_requests_are_answered_at_once_and_limited_while_redis_does_not_answer(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    log = tmp_path / "api.log"
    with (
        running(postgres_server, requests_per_minute=LIMIT) as plane,
        api_process(plane, log) as api,
        client_of(api.plane, key := new_key(plane)) as caller,
    ):
        assert statuses(caller, 1) == {200: 1}
        with hanging_redis(plane):
            took = []
            for _ in range(20):
                began = time.monotonic()
                assert caller.get("/whoami").status_code == 200
                took.append(time.monotonic() - began)
            assert median(took) < REDIS_SECONDS / 2
            assert statuses(caller, LIMIT - 21 + AT_ONCE) == {200: LIMIT - 21, 429: AT_ONCE}
            assert limit_events(log) == {"request_limits_counted_in_process": 1}
        until(lambda: limit_events(log)["request_limits_counted_in_redis"] == 1, "Redis is used again")
        assert limit_events(log) == {
            "request_limits_counted_in_process": 1,
            "request_limits_counted_in_redis": 1,
        }
        with client_of(
            plane, key
        ) as elsewhere:  # what was counted in the memory of one process is not shared
            assert statuses(elsewhere, 1) == {200: 1}


def test_requests_are_answered_and_limited_by_project_after_redis_was_killed(
    postgres_server: PostgresServer,
) -> None:
    # In memory, windows begin with the hours or minutes of the clock. With a window of an hour, a test seldom meets the
    # end of one. It has 120 requests of a principal, 180 of a project.
    hour = {"requests_per_minute": 2, "project_requests_per_minute": 3, "request_window_seconds": 3600}
    with running(postgres_server, **hour) as plane:
        create_project(plane, "shared")
        first, second = (new_key(plane, "shared") for _ in range(2))
        plane.redis.process.kill()
        plane.redis.process.wait()
        with client_of(plane, first) as one, client_of(plane, second) as other:
            assert statuses(one, 120 + AT_ONCE) == {200: 120, 429: AT_ONCE}
            assert statuses(other, 60 + AT_ONCE) == {200: 60, 429: AT_ONCE}


@pytest.fixture
def guarded(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    with running(postgres_server, unauthenticated_per_minute=NO_CREDENTIALS) as plane:
        yield plane


def test_unknown_secrets_from_an_address_that_already_sent_too_many_are_refused_without_verification(
    guarded: RunningPlane,
) -> None:
    known, unseen = issue(guarded, "known", "auditor"), issue(guarded, "unseen", "auditor")
    with client_of(guarded, known) as caller:
        assert statuses(caller, 1) == {200: 1}
        guesses = [guarded.client(**Key("", f"sp_guess-{number}").headers) for number in range(20)]
        found = [guess.get("/whoami") for guess in guesses]
        assert [each.status_code for each in found] == [401] * NO_CREDENTIALS + [429] * 10
        assert found[0].headers["RateLimit"] == f'"unauthenticated";r={NO_CREDENTIALS - 1};t=60'
        assert codes(found[-1]) == ["rate_limited"]
        with client_of(guarded, unseen) as right_guess:
            assert statuses(right_guess, 1) == {429: 1}
        assert statuses(caller, 20) == {200: 20}


def test_requests_with_secrets_that_were_revoked_after_their_verification_are_limited_by_address(
    guarded: RunningPlane,
) -> None:
    key, other = issue(guarded, "revoked", "auditor"), issue(guarded, "other", "auditor")
    clients = [client_of(guarded, each) for each in (session_of(guarded, key.secret) for _ in range(5))]
    with client_of(guarded, other) as caller:
        assert sum((statuses(client, 2) for client in (*clients, caller)), Counter[int]()) == {200: 12}
        with guarded.client() as admin:
            assert admin.post(f"/keys/{key.id}/revoke", json={"reason": "lost"}).is_success
        found = sum((statuses(client, 4) for client in clients), Counter[int]())
        assert found == {401: NO_CREDENTIALS, 429: 10}
        assert statuses(caller, 5) == {200: 5}


def test_ipv4_addresses_that_are_mapped_to_ipv6_have_separate_request_limits(
    postgres_server: PostgresServer,
) -> None:
    trusted = (IPv4Network("127.0.0.0/8"),)
    with running(
        postgres_server, unauthenticated_per_minute=NO_CREDENTIALS, trusted_proxies=trusted
    ) as plane:

        def sent_from(source: str, requests: int) -> Counter[int]:
            with plane.client(Authorization="Bearer sp_guess", **{"X-Forwarded-For": source}) as client:
                return statuses(client, requests)

        assert sent_from("::ffff:203.0.113.5", NO_CREDENTIALS + 1) == {401: NO_CREDENTIALS, 429: 1}
        assert sent_from("203.0.113.5", 1) == {429: 1}
        assert sent_from("::ffff:203.0.113.6", 1) == {401: 1}


def test_requests_without_valid_credentials_are_counted_before_their_body_is_parsed(
    postgres_server: PostgresServer,
) -> None:
    with running(postgres_server, unauthenticated_per_minute=NO_CREDENTIALS) as plane:
        headers = {**Key("", "sp_guess").headers, "Content-Type": "application/json"}
        with httpx.Client(base_url=f"{plane.url}/v1", headers=headers, verify=TLS_CONTEXT) as guess:
            found = [guess.post("/allocations", content=b"{").status_code for _ in range(NO_CREDENTIALS + 2)]
    assert found == [401] * NO_CREDENTIALS + [429] * 2


def test_requests_without_credentials_are_limited_by_address(guarded: RunningPlane) -> None:
    with httpx.Client(base_url=f"{guarded.url}/v1", verify=TLS_CONTEXT) as anonymous:
        assert statuses(anonymous, 15) == {401: NO_CREDENTIALS, 429: 5}
        refused = anonymous.get("/whoami")
        assert (
            "callers without valid credentials at address 127.0.0.1 together may send 10"
            in refused.json()["detail"]
        )
        assert math.isclose(int(refused.headers["Retry-After"]), 60, abs_tol=15)


def test_flood_of_a_principal_beyond_its_limit_is_refused_without_a_query(limited: RunningPlane) -> None:
    with client_of(limited, new_key(limited)) as caller:
        statuses(caller, LIMIT)
        with psycopg.connect(limited.database.admin_dsn) as locking:
            locking.execute("lock table read.api_key in access exclusive mode")
            assert statuses(caller, AT_ONCE) == {429: AT_ONCE}


def test_refusals_of_a_caller_that_continues_to_send_are_answered_late(limited: RunningPlane) -> None:
    with client_of(limited, new_key(limited)) as caller:
        statuses(caller, LIMIT)
        began = time.monotonic()
        assert statuses(caller, AT_ONCE) == {429: AT_ONCE}
        at_once = time.monotonic() - began
        assert statuses(caller, 3) == {429: 3}
        assert time.monotonic() - began - at_once >= 3 * HOLD_SECONDS
    with client_of(limited, new_key(limited)) as other:
        assert statuses(other, 1) == {200: 1}


def test_simultaneous_requests_of_one_caller_are_admitted_at_regular_intervals(limited: RunningPlane) -> None:
    key, requests = new_key(limited), UNDELAYED + 25
    with client_of(limited, key) as caller, ThreadPoolExecutor(requests) as pool:
        statuses(caller, 1)
        began = time.monotonic()
        assert [*pool.map(lambda _: statuses(caller, 1), range(requests))] == [{200: 1}] * requests
        assert time.monotonic() - began >= 24 / PACE


def test_refusals_that_are_delayed_do_not_delay_the_requests_of_others(
    limited: RunningPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "HOLD_SECONDS", 3.0)
    # While many requests arrive at once, the access log gathers their rows for this time.
    monkeypatch.setattr(access_log, "MOMENT_SECONDS", gathering := 6.0)
    key, address = new_key(limited), httpx.URL(limited.url)
    request = f"GET /v1/whoami HTTP/1.1\r\nHost: {address.host}\r\nAuthorization: Bearer {key.secret}\r\n\r\n"
    with (
        client_of(limited, key) as caller,
        client_of(limited, new_key(limited)) as other,
        ExitStack() as opened,
    ):
        assert statuses(caller, LIMIT + AT_ONCE) == {200: LIMIT, 429: AT_ONCE}
        for _ in range(3 * access_log.FEW):
            delayed = opened.enter_context(socket.create_connection((address.host, address.port)))
            delayed.sendall(request.encode())
            began = time.monotonic()
            assert statuses(other, 1) == {200: 1}
            assert time.monotonic() - began < gathering
