"""Events of the ledger in the web console: the list, the causes and effects of an event, and its proof."""

import asyncio
import re
from typing import Any, cast

import httpx
import psycopg
import pytest

from control_plane.api.routes.ledger import events
from control_plane.web.pages.tasks_of_events import with_tasks
from control_plane.web.rendering import gist
from control_plane.web.visits import Visit
from events.ledger.search import WINDOW
from tests.api.access.principals import issue
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.api.scripted_node import scripted_node
from tests.servers.plane import RunningPlane
from tests.waiting import until
from tests.web.browsing import Browser, logged_in


@pytest.fixture(scope="module")
def running(shared_plane: RunningPlane) -> RunningAllocation:
    return RunningAllocation(shared_plane, admit(shared_plane, "n1"))


@pytest.fixture
def admin(running: RunningAllocation) -> Browser:
    return logged_in(running.plane)


def position_of(running: RunningAllocation, kind: str) -> int:
    [(position,)] = running.plane.rows(
        "select position from ledger.event where type = %(kind)s and correlation_id = "
        "(select correlation_id from ledger.event where stream_id = %(stream)s limit 1) limit 1",
        kind=kind,
        stream=f"allocation-{running.id}",
    )
    return int(position)


def causes(running: RunningAllocation, position: int) -> dict[str, Any]:
    with running.plane.client() as client:
        answer = client.get(f"/events/{position}/causes")
    assert answer.is_success, answer.text
    return dict(answer.json())


def test_causes_of_an_event_are_the_chain_before_it_and_its_effects_are_those_that_follow(
    running: RunningAllocation,
) -> None:
    placed = causes(running, position_of(running, "allocation.placed"))
    assert [each["type"] for each in placed["effects"]] == [
        "allocation.slice_ready",
        "allocation.activated",
        "allocation.lease_granted",
    ]
    assert {each["causation_id"] for each in placed["effects"]} == {placed["event"]["id"]}
    assert placed["causes"] == []
    assert [each["type"] for each in placed["others"]][:2] == ["allocation.requested", "allocation.specified"]
    granted = causes(running, position_of(running, "allocation.lease_granted"))
    assert [each["id"] for each in granted["causes"]] == [placed["event"]["id"]]
    assert (granted["effects"], granted["complete"]) == ([], True)


def test_event_that_does_not_exist_or_belongs_to_another_project_has_no_causes(
    running: RunningAllocation,
) -> None:
    own, last = position_of(running, "allocation.placed"), running.plane.last_position()
    foreign = issue(running.plane, "foreign", role="auditor").secret
    other = issue(running.plane, "elsewhere", projects=["default"]).secret
    assert running.plane.client(Authorization=f"Bearer {foreign}").get(f"/events/{own}/causes").is_success
    for secret, position in ((foreign, last + 999), (other, 1)):
        with running.plane.client(Authorization=f"Bearer {secret}") as client:
            answer = client.get(f"/events/{position}/causes")
            reasons = answer.json()["reasons"]
        assert (answer.status_code, [each["code"] for each in reasons]) == (404, ["unknown_event"])


def test_page_of_an_event_shows_its_causes_as_a_tree_and_its_proof_once_it_is_sealed(
    running: RunningAllocation, admin: Browser
) -> None:
    position = position_of(running, "allocation.lease_granted")
    placed = position_of(running, "allocation.placed")
    until(lambda: "This event was signed at" in admin.open(f"/events/{position}").text, "the event is sealed")
    page = admin.open(f"/events/{position}")
    assert f"/ui/events/{placed}" in page.attributes("a", "href")
    assert page.attributes("li", "aria-current") == ["true"]
    with running.plane.client() as client:
        proof = client.get(f"/audit/proofs/{position}", params={"size": 10**6}).json()
        leaf = client.get(f"/audit/proofs/{position}").json()["leaf"]
    assert proof["status"] == 409
    assert leaf in page.text
    assert f"sliceplane events causes {position}" in page.text
    others = page.text.partition("Other events with the same correlation id, oldest first")[2]
    assert "allocation.requested project default, SKU" in others
    assert running.id not in others.partition("As a command")[0]
    first = admin.open(f"/events/{position_of(running, 'allocation.requested')}").text
    assert "No event caused it" in first
    assert "signed, not verified here" in page.text
    assert "● sealed" not in page.text, "the page does not verify the signature"
    counted = (
        r"No later event names this one as its direct cause; other events below belong to the same request or process"
        r" \(the same correlation id\): "
    )
    assert re.search(counted + r"\d+ after it\.", first), "no event is before it"
    assert re.search(counted + r"\d+ before it", page.text)
    assert "Reason report 1 of the node's agent" in page.text
    owner = logged_in(running.plane, issue(running.plane, "owner", projects=["default"]).secret)
    shown = owner.open(f"/events/{position}")
    assert (shown.status, "Seal" in shown.text) == (200, False)


def test_pages_with_events_show_how_much_is_sealed_to_callers_that_may_read_the_audit(
    running: RunningAllocation, admin: Browser
) -> None:
    allocation, node, index = running.id, running.slot["node_id"], running.slot["slot_index"]
    of_node, of_allocation = f"/history?kind=node&name={node}", f"/history?kind=allocation&name={allocation}"
    shown = [f"/allocations/{allocation}", f"/allocations/{allocation}/timeline", of_allocation]
    last = running.plane.last_position()
    with running.plane.client() as client:
        until(lambda: newest_head(client)["size"] >= last, "all events are sealed")
        for path in (*shown, of_node, f"/nodes/{node}", f"/nodes/{node}/slots/{index}", "/events"):
            before, page, after = newest_head(client), admin.open(path), newest_head(client)
            sizes = range(before["size"], after["size"] + 1)
            assert any(f"All events up to position {size} are sealed" in page.text for size in sizes), path
            assert "not sealed" not in page.text, path
        # Nothing can be sealed while this lock is held.
        with psycopg.connect(running.plane.database.admin_dsn) as conn:
            conn.execute("lock table ledger.tree_head in share mode")
            assert client.post(f"/nodes/{node}/cordon", json={"reason": "a new event"}).is_success
            for path in (of_node, f"/nodes/{node}", "/events?type=node.cordoned"):
                assert admin.open(path).text.count("not sealed") == 1, path
        client.post(f"/nodes/{node}/uncordon", json={"reason": "the end of the test"}).raise_for_status()
        until(lambda: "not sealed" not in admin.open(of_node).text, "the new events are sealed")
    member = logged_in(running.plane, issue(running.plane, "member", projects=["default"]).secret)
    for path in shown:
        page = member.open(path)
        assert (page.status, "sealed" in page.text.lower()) == (200, False), path


def newest_head(client: httpx.Client) -> dict[str, Any]:
    return dict(client.get("/audit/heads", params={"limit": 1}).json()["items"][0])


def test_events_are_filtered_by_type_actor_project_stream_node_and_correlation(
    running: RunningAllocation, admin: Browser
) -> None:
    claimed, node = position_of(running, "slot.claimed"), f"node:{running.slot['node_id']}"
    shown = admin.open(f"/events/{claimed}")
    [correlation] = [each for each in shown.attributes("a", "href") if "correlation=" in each]
    selected = {
        "/events?type=slot.claimed": True,
        "/events?node=n1": True,
        "/events?stream=slot-n1/0&type=slot.claimed": True,
        "/events?project=default": True,
        correlation.removeprefix("/ui"): True,
        f"/events?to=position:{claimed - 1}": False,
        f"/events?actor={node}&type=slot.claimed": False,
        "/events?type=node.cordoned": False,
    }
    for path, expected in selected.items():
        assert (f"/ui/events/{claimed}" in admin.open(path).attributes("a", "href")) is expected, path
    assert admin.open("/events?type=absent").status == 422
    assert admin.open("/events?node=absent").status == 200


def test_search_for_a_rare_event_states_how_far_it_went_and_is_continued_by_a_link(
    running_plane: RunningPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordoned = cordon_long_ago(running_plane, monkeypatch)
    page = logged_in(running_plane).open("/events?type=node.cordoned")
    assert "No event found yet." in page.text
    assert re.search(r"Searched back to 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\. Continue the search", page.text)
    [link] = {str(each) for each in page.attributes("a", "href") if "cursor=" in str(each)}
    following = logged_in(running_plane).open(link.removeprefix("/ui"))
    assert f"/ui/events/{cordoned}" in following.attributes("a", "href")
    assert "Continue the search" not in following.text


def cordon_long_ago(plane: RunningPlane, patch: pytest.MonkeyPatch) -> int:
    """Cordon a node and leave more unused positions after the event than the API scans for a page of the newest events.
    Return the position of the event.
    """
    # With fewer windows, the sealer has fewer unused positions to seal.
    patch.setattr(events, "NEWEST_WINDOWS", 1)
    admit(plane, "n1")
    with plane.client() as client:
        client.post("/nodes/n1/cordon", json={"reason": "a rare event"}).raise_for_status()
        cordoned = plane.last_position()
        with psycopg.connect(plane.database.admin_dsn) as conn:
            conn.execute("select setval('ledger.position_seq', %s)", [cordoned + WINDOW + 100])
        client.post("/nodes/n1/uncordon", json={"reason": "a newer event"}).raise_for_status()
    return cordoned


class FakeVisit:
    """A visit to which the API returns only the event of the request of the task `t1`."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    async def get(self, *path: str, **query: Any) -> dict[str, Any]:
        assert path == ("events",)
        self.calls.append(query)
        assert len(query["stream"]) <= 50, "the API filters by at most 50 streams"
        task = {
            "task_id": "t1",
            "kind": "node.verify",
            "node_id": "n1",
            "slot_id": None,
            "allocation_id": None,
        }
        found = [each for each in query["stream"] if each == "task-t1"]
        return {"items": [{"stream": each, "type": "task.requested", "data": task} for each in found]}


def failed(task: str) -> dict[str, Any]:
    reason = {"code": "no_answer", "message": "the node reported no result"}
    data = {"task_id": task, "attempt": 1, "reason": reason}
    return {"stream": f"task-{task}", "type": "task.failed", "actor": "process:task", "data": data}


def with_tasks_of(visit: FakeVisit, events: list[dict[str, Any]]) -> list[Any]:
    return asyncio.run(with_tasks(cast("Visit", visit), events))


def test_failure_of_a_task_names_the_kind_and_the_node_of_the_task() -> None:
    visit, other = FakeVisit(), {"stream": "node-n1", "type": "node.cordoned", "actor": "a", "data": {}}
    shown, repeated, unread, unchanged = with_tasks_of(
        visit, [failed("t1"), failed("t1"), failed("t2"), other]
    )
    line = gist(shown).partition("</a>, ")[2]
    assert line == "kind node.verify, n1, attempt 1, the node reported no result"
    assert shown == repeated
    assert (unread, unchanged) == (failed("t2"), other)
    assert [each["stream"] for each in visit.calls] == [["task-t1", "task-t2"]]


def test_list_of_events_names_the_kind_and_the_node_of_a_task_that_failed(
    running: RunningAllocation, admin: Browser
) -> None:
    node = scripted_node(running.plane, "failing-1")
    task = node.request_task("node.verify", node_id="failing-1")
    reason = {"code": "step_refused", "message": "no space left"}
    node.report("operation.failed", operation_id=node.newest_operation(task), reason=reason)
    until(
        lambda: "kind node.verify, failing-1, attempt 1" in admin.open("/events", type="task.failed").text,
        "the list names the task of the failure",
    )


def test_tasks_of_many_failures_are_read_in_requests_of_at_most_50_and_none_without_failures() -> None:
    visit = FakeVisit()
    with_tasks_of(visit, [failed(f"t{number}") for number in range(1, 102)])
    assert [len(each["stream"]) for each in visit.calls] == [50, 50, 1]
    assert with_tasks_of(quiet := FakeVisit(), []) == []
    assert quiet.calls == []
