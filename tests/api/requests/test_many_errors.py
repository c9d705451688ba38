"""A request with very many errors is refused at low cost: the response and the log line have a bounded size."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from fastapi import Request
from structlog.testing import capture_logs

from control_plane.api.requests.access import SELF_VERIFIED, AuthenticatedRoute
from control_plane.api.requests.body_limit import MOST_ENROLMENT_BYTES
from control_plane.api.requests.invalid import refusal_of
from control_plane.api.requests.problem_types import MOST_REASONS
from control_plane.api.requests.request_checks import storable
from control_plane.decisions.refusals import Malformed, Refused
from tasks.agent_api import Enrolment
from tests.servers.plane import TLS_CONTEXT, RunningPlane

COUNT = 5_000
MOST_ANSWERED = 32 * 1024


class ReadItems(list[str]):
    """List that counts the items that were read from it."""

    read = 0

    def __iter__(self) -> Iterator[str]:
        for each in super().__iter__():
            self.read += 1
            yield each


class Prepared(Request):
    """Request to enrol a node, with a body that is a Python value."""

    def __init__(self, content: Any) -> None:
        async def enrol(body: Enrolment) -> None: ...

        route = AuthenticatedRoute("/enroll", enrol, methods=["POST"], openapi_extra=SELF_VERIFIED)
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "route": route, "path_params": {}, "query_string": b"", "headers": headers}
        super().__init__(scope)
        self._content = content

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> Any:
        return self._content


def enrol(plane: RunningPlane, body: Any) -> httpx.Response:
    """Send a body to the route of enrolments, which needs no credentials."""
    content = json.dumps(body)
    assert len(content) <= MOST_ENROLMENT_BYTES == 64 * 1024
    headers = {"Content-Type": "application/json"}
    return httpx.post(
        f"{plane.url}/v1/agent/enroll", content=content, headers=headers, timeout=20, verify=TLS_CONTEXT
    )


def reasons(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 422
    assert len(answer.content) <= MOST_ANSWERED
    found: list[dict[str, Any]] = answer.json()["reasons"]
    return found


@pytest.mark.parametrize(
    ("body", "code", "first_field"),
    [
        ({"token": ["\0"] * COUNT}, "unstorable_character", "/token/0"),
        ({f"f{number}": 0 for number in range(COUNT)}, "unknown_field", "/f0"),
        ({"k" * 30_000: ["\0"] * 3_000}, "unstorable_character", f"/{'k' * 499}..."),
    ],
    ids=["unstorable-values", "unknown-fields", "long-key"],
)
def test_request_with_thousands_of_errors_is_refused_with_the_first_twenty_reasons(
    shared_plane: RunningPlane, body: dict[str, Any], code: str, first_field: str
) -> None:
    with capture_logs() as lines:
        answer = enrol(shared_plane, body)

    found = reasons(answer)
    assert len(found) == MOST_REASONS == 20
    assert code in {each["code"] for each in found}
    assert first_field in {each["field"] for each in found}
    assert answer.json()["detail"].endswith("there are more reasons; only the first 20 are listed")
    [line] = [each for each in lines if each["event"] == "request_refused"]
    assert len(line["reasons"]) == MOST_REASONS


def test_request_with_exactly_twenty_errors_is_refused_with_all_reasons(shared_plane: RunningPlane) -> None:
    answer = enrol(shared_plane, {"token": ["\0"] * MOST_REASONS})

    assert [each["field"] for each in reasons(answer)] == [f"/token/{index}" for index in range(20)]
    assert "more reasons" not in answer.json()["detail"]


def test_refusal_of_an_unknown_field_with_a_long_name_shows_only_its_beginning(
    shared_plane: RunningPlane,
) -> None:
    answer = enrol(shared_plane, {"k" * 60_000: 0})

    shown = {each["field"]: each["message"] for each in reasons(answer) if each["code"] == "unknown_field"}
    assert shown == {f"/{'k' * 499}...": f"'{'k' * 63}... is not a field of this request"}


def test_schema_errors_that_the_problem_does_not_list_are_not_translated(
    shared_plane: RunningPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    translated: list[Any] = []

    def counted(error: Mapping[str, Any], body: Any) -> Refused:
        translated.append(error)
        return refusal_of(error, body)

    monkeypatch.setattr("control_plane.api.requests.problems.refusal_of", counted)
    enrol(shared_plane, {f"f{number}": 0 for number in range(COUNT)})

    assert len(translated) == MOST_REASONS + 1


def test_check_for_unstorable_values_stops_after_it_has_found_twenty_one_of_them() -> None:
    items = ReadItems(["\0"] * COUNT)

    with pytest.raises(Malformed) as refused:
        asyncio.run(storable(Prepared({"token": items})))

    assert len(refused.value.objections) == MOST_REASONS + 1
    assert items.read == MOST_REASONS + 1


def test_check_of_storable_values_below_a_long_key_needs_no_time_for_the_key() -> None:
    # Pointers to all items would have 6 GB together.
    request = Prepared({"k" * 100_000: [0] * 60_000})
    began = time.thread_time()

    asyncio.run(storable(request))

    assert time.thread_time() - began < 0.3
