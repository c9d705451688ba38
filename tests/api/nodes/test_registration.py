"""The registration of a node can be repeated and removed until the node has enrolled."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.lifecycle import get_view
from tests.api.node import admit, enrol, register_node
from tests.servers.plane import RunningPlane


def register(plane: RunningPlane, name: str) -> dict[str, Any]:
    with plane.client() as client:
        answer = client.post("/nodes", json={"id": name})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def remove(plane: RunningPlane, name: str) -> httpx.Response:
    with plane.client() as client:
        return client.delete(f"/nodes/{name}")


def names(plane: RunningPlane, **query: str) -> list[str]:
    return [each["id"] for each in get_view(plane, "/nodes", **query).json()["items"]]


def reason(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["reasons"][0]["code"]


def claimed(plane: RunningPlane, kind: str) -> list[str]:
    found = plane.rows("select value from ledger.claim where kind = %(kind)s order by value", kind=kind)
    return [value for (value,) in found]


def test_node_that_never_enrolled_is_removed_and_its_name_and_subnet_are_registered_again(
    emptied_plane: RunningPlane,
) -> None:
    first = register(emptied_plane, "rack-l")
    with emptied_plane.client() as client:
        own = [{"address": "203.0.113.7", "use": "whole"}]
        assert client.put("/nodes/rack-l/public-addresses", json={"addresses": own}).is_success
    registered = emptied_plane.last_position()
    assert claimed(emptied_plane, "subnet") == [first["subnet"]]

    removed = remove(emptied_plane, "rack-l")

    assert (removed.status_code, removed.json()["state"]) == (200, "removed")
    assert (claimed(emptied_plane, "subnet"), claimed(emptied_plane, "public")) == ([], [])
    assert names(emptied_plane) == []
    assert get_view(emptied_plane, "/nodes/rack-l").status_code == 404
    assert enrol(emptied_plane, "rack-l", first["enrolment_token"]).status_code == 401
    assert register(emptied_plane, "rack-1")["subnet"] == first["subnet"]
    again = register(emptied_plane, "rack-l")
    assert again["subnet"] != first["subnet"]
    assert names(emptied_plane) == ["rack-1", "rack-l"]
    assert names(emptied_plane, at=f"position:{registered}") == ["rack-l"]
    assert enrol(emptied_plane, "rack-l", first["enrolment_token"]).status_code == 401
    assert enrol(emptied_plane, "rack-l", again["enrolment_token"]).status_code == 200


def test_removed_node_is_absent_from_views_of_the_time_after_its_removal(
    emptied_plane: RunningPlane,
) -> None:
    register(emptied_plane, "n1")
    assert remove(emptied_plane, "n1").is_success
    after = emptied_plane.last_position()
    register(emptied_plane, "n1")

    assert names(emptied_plane, at=f"position:{after}") == []
    assert get_view(emptied_plane, "/nodes/n1", at=f"position:{after}").status_code == 404
    history = get_view(emptied_plane, "/history/node/n1", at=f"position:{after}").json()
    assert history["state"]["state"] == "removed"


def test_repeated_removal_of_a_registration_adds_no_event(emptied_plane: RunningPlane) -> None:
    register(emptied_plane, "n1")
    assert remove(emptied_plane, "n1").is_success
    last = emptied_plane.last_position()

    assert remove(emptied_plane, "n1").json()["state"] == "removed"
    assert emptied_plane.last_position() == last
    assert reason(remove(emptied_plane, "n2")) == (404, "unknown_node")


@pytest.mark.parametrize("since", ["enrolled", "reopened", "revoked"])
def test_removal_of_a_node_that_has_enrolled_is_refused_with_advice(
    emptied_plane: RunningPlane, since: str
) -> None:
    admit(emptied_plane, "n1")
    with emptied_plane.client() as client:
        if since == "reopened":
            assert client.post("/nodes/n1/enrolment").is_success
        if since == "revoked":
            assert client.post("/nodes/n1/revoke", json={"reason": "lost"}).is_success

    refused = remove(emptied_plane, "n1")

    assert reason(refused) == (409, "node_enrolled")
    assert "sliceplane nodes revoke n1" in refused.json()["detail"]
    assert len(claimed(emptied_plane, "subnet")) == 1


def test_repeated_registration_returns_a_new_token_and_invalidates_the_old_one(
    emptied_plane: RunningPlane,
) -> None:
    first, second = register(emptied_plane, "n1"), register(emptied_plane, "n1")

    assert second["subnet"] == first["subnet"]
    assert second["enrolment_token"] != first["enrolment_token"]
    assert enrol(emptied_plane, "n1", first["enrolment_token"]).status_code == 401
    assert enrol(emptied_plane, "n1", second["enrolment_token"]).status_code == 200


def test_registration_of_a_node_that_has_enrolled_is_refused_with_advice(
    emptied_plane: RunningPlane,
) -> None:
    enrol(emptied_plane, "n1", register_node(emptied_plane, "n1"))
    with emptied_plane.client() as client:
        refused = [client.post("/nodes", json={"id": "n1"})]
        assert client.post("/nodes/n1/enrolment").is_success
        refused.append(client.post("/nodes", json={"id": "n1"}))

    for answer in refused:
        assert reason(answer) == (409, "node_exists")
        assert "POST /v1/nodes/n1/enrolment" in answer.json()["detail"]


def test_concurrent_enrolment_and_removal_leave_the_node_either_enrolled_or_removed(
    emptied_plane: RunningPlane,
) -> None:
    for name in (f"n{number}" for number in range(8)):
        token = register_node(emptied_plane, name)
        with ThreadPoolExecutor(2) as pool:
            enrolling = pool.submit(enrol, emptied_plane, name, token)
            removing = pool.submit(remove, emptied_plane, name)
            outcomes = enrolling.result().status_code, removing.result().status_code
        assert outcomes in {(200, 409), (401, 200)}
        assert (name in names(emptied_plane)) is (outcomes == (200, 409))
