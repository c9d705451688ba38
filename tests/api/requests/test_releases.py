"""What clients of several releases rely on: the list of capabilities, deprecation headers, and request ids."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import structlog
from fastapi import APIRouter, FastAPI, HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs

from control_plane.api.app import _RequestId
from control_plane.api.audit.entries import entry_for
from control_plane.api.requests.access import EVERYONE, AuthenticatedRoute
from control_plane.api.requests.deprecation import deprecated
from control_plane.api.requests.response_headers import ResponseHeaders
from control_plane.version import release
from tests.servers.plane import TLS_CONTEXT, RunningPlane


def test_capabilities_list_every_route_of_the_openapi_document_without_credentials(
    shared_plane: RunningPlane,
) -> None:
    answer = httpx.get(f"{shared_plane.url}/v1", verify=TLS_CONTEXT)
    assert answer.status_code == 200
    found = answer.json()
    paths = shared_plane.document()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert {route for group in found["groups"] for route in group["routes"]} == routes
    assert found["version"] == release()
    assert {"etags", "idempotency-keys", "dry-run"} <= {*found["features"]}


def test_limits_in_the_list_of_capabilities_are_enforced_on_requests(shared_plane: RunningPlane) -> None:
    with shared_plane.client() as admin:
        limits = admin.get(f"{shared_plane.url}/v1").json()["limits"]
        most, longest = limits["page_items"], limits["idempotency_key_characters"]
        assert admin.get("/nodes", params={"limit": most}).status_code == 200
        assert admin.get("/nodes", params={"limit": most + 1}).status_code == 422
        for length, refused in ((longest, False), (longest + 1, True)):
            answer = admin.post(
                "/projects", json={"id": f"p{length}"}, headers={"Idempotency-Key": "k" * length}
            )
            assert (answer.status_code == 422) is refused


class WithEntry:
    """Middleware that gives each request an access log entry, which is never stored."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry_for(scope)
        await self._app(scope, receive, send)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Client of an application with a deprecated route, a deprecated route that refuses, and a current route."""
    app, router = FastAPI(), APIRouter(route_class=AuthenticatedRoute)
    old = deprecated(
        since=datetime(2026, 12, 1, tzinfo=UTC), sunset=datetime(2027, 6, 1, tzinfo=UTC), link="/docs#new"
    )

    @router.get("/old", openapi_extra={**EVERYONE, **old})
    async def replaced() -> str:
        return "old"

    @router.get("/old/refused", openapi_extra={**EVERYONE, **old})
    async def refused() -> str:
        raise HTTPException(409)

    @router.get("/new", openapi_extra=EVERYONE)
    async def current() -> str:
        structlog.get_logger().info("called")
        return "new"

    app.include_router(router)
    app.add_middleware(WithEntry)
    app.add_middleware(ResponseHeaders)
    app.add_middleware(_RequestId)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", verify=TLS_CONTEXT) as client:
        yield client


@pytest.mark.parametrize("path", ["/old", "/old/refused"])
async def test_every_response_of_a_deprecated_route_announces_its_removal(
    client: httpx.AsyncClient, path: str
) -> None:
    headers = (await client.get(path)).headers
    assert headers["deprecation"] == "@1796083200"
    assert headers["sunset"] == "Tue, 01 Jun 2027 00:00:00 GMT"
    assert headers["link"] == '</docs#new>; rel="deprecation"; type="text/html"'
    document = (await client.get("/openapi.json")).json()
    assert document["paths"][path]["get"]["deprecated"] is True


async def test_route_that_is_not_deprecated_has_no_deprecation_headers(client: httpx.AsyncClient) -> None:
    assert not {"deprecation", "sunset", "link"} & {*(await client.get("/new")).headers}


def test_deprecation_that_begins_after_the_removal_is_refused() -> None:
    later, earlier = datetime(2027, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="cannot be removed"):
        deprecated(since=later, sunset=earlier, link="/docs")


@pytest.mark.parametrize(
    ("sent", "logged"),
    [("job-17.a_b", "job-17.a_b"), ("", None), ("x" * 65, None), ("two words", None), ("\x1b[31m", None)],
)
async def test_request_id_of_a_client_is_logged_only_if_it_is_safe_and_never_replaces_the_id_of_the_server(
    client: httpx.AsyncClient, sent: str, logged: str | None
) -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answer = await client.get("/new", headers={b"X-Request-Id": sent.encode()})
    own = answer.headers["x-request-id"]
    assert own.startswith("req-")
    called: list[dict[str, Any]] = [dict(line) for line in lines if line["event"] == "called"]
    assert [(line["request"], line.get("client_request")) for line in called] == [(own, logged)]
