"""Tests of projects: they are created, described and archived, and a caller sees and changes only its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest

from tests.api.access.principals import client_of, create_project, issue
from tests.api.node import KEY, admit
from tests.servers.plane import RunningPlane
from tests.waiting import until


@dataclass(frozen=True)
class TwoProjects:
    """Two callers of different projects, each with an allocation on the same node."""

    plane: RunningPlane
    clients: dict[str, httpx.Client]
    allocations: dict[str, str]


@pytest.fixture(scope="module")
def two(shared_plane: RunningPlane) -> Iterator[TwoProjects]:
    admit(shared_plane, "n1", slots=2)
    clients, allocations = {}, {}
    for name in ("red", "blue"):
        create_project(shared_plane, name)
        clients[name] = client_of(shared_plane, issue(shared_plane, name, projects=[name]))
        answer = request_allocation(clients[name])
        assert answer.status_code == 202, answer.text
        allocations[name] = answer.json()["id"]
    yield TwoProjects(shared_plane, clients, allocations)
    for client in clients.values():
        client.close()


def request_allocation(client: httpx.Client, **fields: object) -> httpx.Response:
    return client.post("/allocations", json={"sku": "lab.small", "ssh_authorized_keys": [KEY], **fields})


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def test_allocation_of_a_caller_belongs_to_its_only_project_if_the_request_names_none(
    two: TwoProjects,
) -> None:
    view = two.clients["red"].get(f"/allocations/{two.allocations['red']}").json()
    assert view["project"] == "red"


def test_lists_of_a_caller_contain_only_what_belongs_to_its_project(two: TwoProjects) -> None:
    def listed() -> list[str]:
        return [each["id"] for each in two.clients["red"].get("/allocations").json()["items"]]

    until(lambda: listed() == [two.allocations["red"]], "the projector has listed the allocation")
    assert two.clients["red"].get("/allocations", params={"project": "blue"}).json()["items"] == []
    events = two.clients["red"].get("/events", params={"limit": 500}).json()["items"]
    assert {each["project"] for each in events} == {"red"}
    assert {each["stream"].partition("-")[0] for each in events} >= {"allocation", "slot"}
    until(lambda: bool(two.clients["red"].get("/tasks").json()["items"]), "the order is listed")
    tasks = two.clients["red"].get("/tasks").json()["items"]
    assert {each["allocation_id"] for each in tasks} == {two.allocations["red"]}
    assert [each["id"] for each in two.clients["red"].get("/projects").json()["items"]] == ["red"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/allocations/{}"),
        ("GET", "/allocations/{}?at=position:1000000"),
        ("GET", "/allocations/{}/events"),
        ("GET", "/allocations/{}/watch"),
        ("GET", "/history/allocation/{}"),
        ("GET", "/history/allocation/{}/changes"),
        ("POST", "/allocations/{}/stop"),
        ("POST", "/allocations/{}/start"),
        ("DELETE", "/allocations/{}"),
        ("POST", "/allocations/{}/ingress"),
        ("DELETE", "/allocations/{}/ingress/ing-0000000000000000000000000a"),
    ],
)
def test_allocation_of_another_project_is_answered_like_one_that_does_not_exist(
    two: TwoProjects, method: str, path: str
) -> None:
    def refusal(name: str) -> tuple[int, list[str]]:
        body = {"port": 22} if path.endswith("/ingress") else None
        answer = two.clients["red"].request(method, path.format(name), json=body)
        return answer.status_code, codes(answer)

    of_blue, of_none = refusal(two.allocations["blue"]), refusal("alc-0000000000000000000000000a")
    assert of_blue == of_none == (404, ["unknown_allocation"])


def test_task_of_another_project_is_answered_like_one_that_does_not_exist(two: TwoProjects) -> None:
    def tasks() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = two.clients["blue"].get("/tasks").json()["items"]
        return found

    until(lambda: bool(tasks()), "the order is listed")
    name = tasks()[0]["id"]
    assert two.clients["blue"].get(f"/tasks/{name}").is_success
    for path in (f"/tasks/{name}", f"/tasks/{name}/watch"):
        answer = two.clients["red"].get(path)
        assert (answer.status_code, codes(answer)) == (404, ["unknown_task"])


def test_events_of_another_project_are_refused_as_an_unknown_project(two: TwoProjects) -> None:
    for path in ("/events", "/events/watch"):
        answer = two.clients["red"].get(path, params={"project": "blue"})
        assert (answer.status_code, codes(answer)) == (404, ["unknown_project"])


def test_request_for_a_project_of_others_is_refused_like_one_for_a_project_that_does_not_exist(
    two: TwoProjects,
) -> None:
    answers = [request_allocation(two.clients["red"], project=name) for name in ("blue", "nowhere")]
    assert [(each.status_code, codes(each)) for each in answers] == [(404, ["unknown_project"])] * 2
    texts = [[each.json()[name] for name in ("type", "title", "hint", "detail")] for each in answers]
    assert texts[0] == [text.replace("nowhere", "blue") for text in texts[1]]


def test_history_of_addresses_and_nodes_is_refused_to_a_caller(two: TwoProjects) -> None:
    for path in ("/history/node/n1", "/history/slot/n1/0", "/history/address/10.0.0.1"):
        answer = two.clients["red"].get(path)
        assert answer.status_code == 403, path


def test_auditor_sees_the_allocations_of_all_projects_and_changes_none(two: TwoProjects) -> None:
    with client_of(two.plane, issue(two.plane, "auditor", "auditor")) as auditor:
        for allocation in two.allocations.values():
            assert auditor.get(f"/allocations/{allocation}").is_success
            assert auditor.delete(f"/allocations/{allocation}").status_code == 403


def test_allocation_request_without_a_project_from_a_caller_with_several_projects_is_refused(
    two: TwoProjects,
) -> None:
    key = issue(two.plane, "both", projects=["red", "blue"])
    with client_of(two.plane, key) as caller:
        answer = request_allocation(caller)
        assert (answer.status_code, codes(answer)) == (422, ["project_missing"])


def test_project_with_claimed_slots_is_not_archived(two: TwoProjects) -> None:
    with two.plane.client() as admin:
        answer = admin.post("/projects/red/archive", json={"reason": "done"})
    assert (answer.status_code, {*codes(answer)}) == (409, {"project_in_use"})
    assert two.allocations["red"] in answer.json()["detail"]


def test_archived_project_is_read_but_not_changed(shared_plane: RunningPlane) -> None:
    create_project(shared_plane, "old")
    key = issue(shared_plane, "old", projects=["old"])
    with shared_plane.client() as admin, client_of(shared_plane, key) as caller:
        assert (
            admin.patch("/projects/old", json={"description": "a trial"}).json()["description"] == "a trial"
        )
        for _ in range(2):
            archived = admin.post("/projects/old/archive", json={"reason": "trial ended"})
            assert (archived.json()["state"], archived.json()["reason"]) == ("archived", "trial ended")
        assert caller.get("/projects/old").json()["state"] == "archived"
        assert caller.get("/allocations").is_success
        for refused in (
            request_allocation(caller),
            admin.patch("/projects/old", json={"description": "again"}),
            admin.post("/keys", json={"name": "new", "role": "caller", "projects": ["old"]}),
        ):
            assert (refused.status_code, codes(refused)) == (409, ["project_archived"])


def test_allocation_is_not_created_in_a_project_that_is_archived_at_the_same_time(
    shared_plane: RunningPlane,
) -> None:
    create_project(shared_plane, "closing")
    key = issue(shared_plane, "closing", projects=["closing"])
    with (
        psycopg.connect(shared_plane.database.admin_dsn) as archiving,
        client_of(shared_plane, key) as caller,
        ThreadPoolExecutor(1) as pool,
    ):
        archiving.execute("update read.project set archived = 'trial ended' where project = 'closing'")
        answering = pool.submit(request_allocation, caller)
        until(shared_plane.has_lock_waiter, "the request waits for the row of the project")
        archiving.commit()
        answer = answering.result()
    assert (answer.status_code, codes(answer)) == (409, ["project_archived"])


def test_project_that_exists_is_not_created_again(shared_plane: RunningPlane) -> None:
    create_project(shared_plane, "twice")
    with shared_plane.client() as admin:
        answer = admin.post("/projects", json={"id": "twice"})
    assert (answer.status_code, codes(answer)) == (409, ["project_exists"])
