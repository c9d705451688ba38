"""Serial logs of slices: the request to the node, its answer, and refusals."""

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest
from redis import Redis

from tasks.streams import KEPT_LOG_DAYS
from tests.api.access.principals import create_project, issue
from tests.api.broken_nodes import Node, accepted_allocation
from tests.api.node import admit, as_node
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until

OUTPUT = "Booting\r\nkernel panic: no init\r\n"


class LogRequests:
    """Requests for the serial log of an allocation with a slot on node n1. The test takes the place of its agent."""

    def __init__(self, plane: RunningPlane, allocation: str) -> None:
        self.plane, self._allocation = plane, allocation
        self._pool = ThreadPoolExecutor(1)

    def request(self, **query: int) -> "Future[httpx.Response]":
        return self._pool.submit(lambda: self.show(None, **query))

    def show(self, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        with self.plane.client(**(headers or {})) as client:
            return client.get(f"/allocations/{self._allocation}/serial-log", params=query)

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


class LogSite(LogRequests):
    """An active allocation on node n1, and another node n2. The test takes the place of their agents."""

    def __init__(self, plane: RunningPlane) -> None:
        self.node = admit(plane, "n1")
        admit(plane, "n2")
        self.allocation = RunningAllocation(plane, self.node)
        super().__init__(plane, self.allocation.id)

    def remove(self) -> None:
        """Release the allocation, and report its slice removed."""
        with self.plane.client() as admin:
            assert admin.delete(f"/allocations/{self.allocation.id}").is_success
        absent = ["link", "lease", "port", "translation", "machine"]
        self.allocation.report("slice.removed", absent=absent)


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


def test_serial_log_of_a_slot_or_placement_that_the_allocation_does_not_have_is_refused(
    site: LogSite,
) -> None:
    for name, number, code in (("slot", 1, "unknown_slot_index"), ("attempt", 2, "unknown_placement")):
        refused = site.show(None, **{name: number})
        assert refused.status_code == 422
        assert [each["code"] for each in refused.json()["reasons"]] == [code]


def test_serial_log_of_a_removed_slice_comes_from_the_node_of_its_former_slot(site: LogSite) -> None:
    site.remove()
    requested = site.request()
    site.answer(stream_id=site.requested_stream(), text=OUTPUT, kept_bytes=1_000_000)
    found = requested.result(20).json()
    assert (found["slot_id"], found["text"], found["kept_bytes"]) == ("n1/0", OUTPUT, 1_000_000)
    assert found["truncated"]


def test_serial_log_of_a_removed_slice_is_refused_like_that_of_a_running_one(site: LogSite) -> None:
    site.remove()
    auditor = issue(site.plane, "auditor", "auditor").headers
    assert site.show(auditor).status_code == 403
    create_project(site.plane, "other")
    foreign = issue(site.plane, "other", projects=["other"]).headers
    assert site.show(foreign).status_code == 404
    assert site.show(slot=1).status_code == 422


def test_serial_log_of_a_removed_slice_that_its_node_does_not_keep_is_refused_with_the_reason(
    site: LogSite,
) -> None:
    site.remove()
    requested = site.request()
    reason = {"code": "slice_not_on_node", "message": "slot n1/0 has no serial log of the allocation"}
    site.answer(stream_id=site.requested_stream(), failure=reason)
    refused = requested.result(20)
    assert refused.status_code == 409
    [stated] = refused.json()["reasons"]
    assert stated["code"] == "serial_log_not_kept"
    assert "node n1 has no serial log" in stated["message"]
    assert f"at most {KEPT_LOG_DAYS} days" in stated["message"]


def test_allocation_that_was_never_placed_has_no_serial_log(site: LogSite) -> None:
    accepted_allocation(site.plane)
    waiting = accepted_allocation(site.plane, wait_for_capacity=True)
    refused = LogRequests(site.plane, waiting["id"]).show()
    assert refused.status_code == 409
    assert [each["code"] for each in refused.json()["reasons"]] == ["slice_not_on_node"]


def test_serial_log_of_the_first_placement_of_a_replaced_allocation_comes_from_the_node_that_failed(
    emptied_plane: RunningPlane,
) -> None:
    first = Node(emptied_plane, "n1", slots=1)
    allocation = accepted_allocation(emptied_plane)
    Node(emptied_plane, "n2", slots=1)
    counted = "select coalesce(sum(free), 0) from work.slot_counts"
    until(lambda: emptied_plane.rows(counted) == [(1,)], "the free slots are counted")
    first.report_failed(allocation)
    requests = LogRequests(emptied_plane, allocation["id"])
    requested = requests.request(attempt=1)
    requests.answer(stream_id=requests.requested_stream(), text=OUTPUT, kept_bytes=len(OUTPUT))
    assert (requested.result(20).json()["slot_id"], requested.result().json()["text"]) == ("n1/0", OUTPUT)
    requested = requests.request(attempt=1)
    reason = {"code": "slice_not_on_node", "message": "slot n1/0 has no serial log of the allocation"}
    requests.answer(stream_id=requests.requested_stream(), failure=reason)
    assert [each["code"] for each in requested.result(20).json()["reasons"]] == ["serial_log_not_kept"]
