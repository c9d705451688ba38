"""Serial logs of slices: the request to the node, its answer, and refusals."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.api.access.principals import create_project, issue
from tests.api.node import admit, as_node
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until

OUTPUT = "Booting\r\nkernel panic: no init\r\n"


class LogSite:
    """An active allocation on node n1, and another node n2. The test takes the place of their agents."""

    def __init__(self, plane: RunningPlane) -> None:
        self.plane, self.node = plane, admit(plane, "n1")
        admit(plane, "n2")
        self.allocation = RunningAllocation(plane, self.node)
        self._pool = ThreadPoolExecutor(1)

    def request(self, tail: int | None = None) -> "Future[httpx.Response]":
        query: dict[str, Any] = {} if tail is None else {"tail": tail}
        return self._pool.submit(lambda: self.show(**query))

    def show(self, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        with self.plane.client(**(headers or {})) as client:
            return client.get(f"/allocations/{self.allocation.id}/serial-log", params=query)

    def requested_stream(self) -> str:
        """Wait until the API waits for an answer of n1, and return the id of the requested stream."""
        with closing(Redis.from_url(self.plane.redis.url)) as client:
            found: list[Any] = []

            def is_wanted() -> bool:
                found[:] = client.keys("stream:n1:*:wanted")
                return bool(found)

            until(is_wanted, "the API waits for a serial log")
            return str(found[0].decode().split(":")[2])

    def answer(self, node: str = "n1", **body: object) -> None:
        with closing(as_node(self.plane, node)) as client:
            answer = client.post("/serial-logs", json=body)
            assert answer.status_code == 204, answer.text


@pytest.fixture
def site(emptied_plane: RunningPlane) -> LogSite:
    return LogSite(emptied_plane)


def test_serial_log_has_the_last_lines_of_the_text_that_the_node_sent(site: LogSite) -> None:
    requested = site.request(tail=1)
    site.answer(stream_id=site.requested_stream(), text=OUTPUT, kept_bytes=len(OUTPUT))
    found = requested.result(20)
    assert found.status_code == 200, found.text
    assert found.json() == {
        "allocation_id": site.allocation.id,
        "slot_id": "n1/0",
        "node_id": "n1",
        "text": "kernel panic: no init\r\n",
        "kept_bytes": len(OUTPUT),
        "truncated": True,
    }


def test_answer_of_another_node_and_a_second_answer_are_dropped(site: LogSite) -> None:
    requested = site.request()
    stream = site.requested_stream()
    site.answer("n2", stream_id=stream, text="forged", kept_bytes=6)
    site.answer(stream_id=stream, text=OUTPUT, kept_bytes=len(OUTPUT))
    site.answer(stream_id=stream, text="second", kept_bytes=6)
    assert requested.result(20).json()["text"] == OUTPUT
    with closing(Redis.from_url(site.plane.redis.url)) as client:
        until(lambda: client.keys("stream:*") == [], "no key of the stream is left")


def test_failure_that_the_node_reports_is_the_reason_of_the_refusal(site: LogSite) -> None:
    requested = site.request()
    reason = {"code": "slice_not_on_node", "message": "slot n1/0 has no slice of the allocation"}
    site.answer(stream_id=site.requested_stream(), failure=reason)
    refused = requested.result(20)
    assert refused.status_code == 409
    assert [each["code"] for each in refused.json()["reasons"]] == ["slice_not_on_node"]


def test_serial_log_of_a_node_that_does_not_answer_is_refused_after_ten_seconds_and_leaves_nothing_in_its_queue(
    site: LogSite,
) -> None:
    refused = site.show()
    assert refused.status_code == 503
    assert [each["code"] for each in refused.json()["reasons"]] == ["node_not_responding"]
    assert int(refused.headers["retry-after"]) > 0
    with closing(Redis.from_url(site.plane.redis.url)) as client:
        assert client.keys("stream:*") == []
        queued = client.hvals("ctl:n1:slices.messages")
    assert [each for each in queued if b"stream.open" in each] == []


def test_serial_log_is_refused_without_the_scope_that_changes_allocations_and_for_another_project(
    site: LogSite,
) -> None:
    auditor = issue(site.plane, "auditor", "auditor").headers
    assert site.show(auditor).status_code == 403
    create_project(site.plane, "other")
    foreign = issue(site.plane, "other", projects=["other"]).headers
    assert site.show(foreign).status_code == 404


def test_serial_log_of_a_slot_that_the_allocation_does_not_have_and_of_a_released_one_is_refused(
    site: LogSite,
) -> None:
    assert site.show(slot=1).status_code == 422
    with site.plane.client() as admin:
        assert admin.delete(f"/allocations/{site.allocation.id}").is_success
    absent = ["link", "lease", "port", "translation", "machine"]
    site.allocation.report("slice.removed", absent=absent)
    refused = site.show()
    assert refused.status_code == 409
    assert [each["code"] for each in refused.json()["reasons"]] == ["slice_not_on_node"]
