"""History of one object of the API: its state at a position, and each change with its event, actor and reason."""

from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.time_travel.differences import differences
from deploy.embedded.postgres import PostgresServer
from tests.api.lifecycle import Lifecycle, get_view, record_lifecycle
from tests.servers.plane import running


@pytest.fixture(scope="module")
def lifecycle(postgres_server: PostgresServer) -> Iterator[Lifecycle]:
    with running(postgres_server) as plane:
        yield record_lifecycle(plane)


def subjects(lifecycle: Lifecycle) -> dict[str, str]:
    """Return the objects with a history in the API, each with the API path of its current state."""
    return {
        f"allocation/{lifecycle.allocation}": f"/allocations/{lifecycle.allocation}",
        "slot/n1/0": "/slots",
        "node/n1": "/nodes/n1",
    }


def changes(lifecycle: Lifecycle, subject: str, **query: str) -> dict[str, Any]:
    answer = get_view(lifecycle.plane, f"/history/{subject}/changes", **query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def without_conditions(expected: dict[str, Any]) -> dict[str, Any]:
    """Return an allocation's view without the conditions, the address of terminals and the actions of the caller, which
    have no history.
    """
    return expected | {"conditions": None, "terminal_address": None, "allowed_actions": None}


def test_past_state_at_a_position_equals_the_api_response_of_that_time(lifecycle: Lifecycle) -> None:
    for moment in lifecycle.moments:
        for subject, path in subjects(lifecycle).items():
            recorded = get_view(
                lifecycle.plane, f"/history/{subject}", at=f"position:{moment.position}"
            ).json()
            expected = moment.responses[path]["items"][0] if path == "/slots" else moment.responses[path]
            if path == "/slots":
                expected = expected | {"blocked_by": None, "allowed_actions": None}
            if path == "/nodes/n1":
                expected = expected | {
                    "state": "enrolled",
                    "seen_at": None,
                    "spooled_reports": None,
                    "blocked_by": None,
                    "allowed_actions": None,
                }
                # The drift of slots, and the slots that a drain waits for, are in the histories of the slots.
                del expected["slot_drift"], expected["drain"]
            if path.startswith("/allocations/"):
                expected = without_conditions(expected)
            assert recorded["state"] == expected
            assert recorded["at"]["cursor"] == f"1.{moment.position}"


def test_address_history_names_the_holding_slot_and_its_allocation(lifecycle: Lifecycle) -> None:
    slot = lifecycle.moments[0].responses["/slots"]["items"][0]
    for name in (slot["private_ip"], slot["mac_address"], slot["mac_address"].upper()):
        for moment in lifecycle.moments:
            recorded = get_view(
                lifecycle.plane, f"/history/address/{name}", at=f"position:{moment.position}"
            ).json()
            [holder] = recorded["state"]["holders"]
            slot = moment.responses["/slots"]["items"][0]
            assert holder["slot"] == slot | {"blocked_by": None, "allowed_actions": None}
            tenant = holder["allocation"] and holder["allocation"]["id"]
            assert tenant == holder["slot"]["allocation_id"]


def test_history_state_before_the_first_event_is_null(lifecycle: Lifecycle) -> None:
    slot = lifecycle.moments[0].responses["/slots"]["items"][0]
    for subject in (*subjects(lifecycle), f"address/{slot['private_ip']}"):
        recorded = get_view(lifecycle.plane, f"/history/{subject}", at="position:1").json()
        assert recorded["state"] is None


@pytest.mark.parametrize("limit", [1, 3, 200])
def test_history_changes_applied_to_the_state_before_a_range_result_in_the_state_after_the_range(
    lifecycle: Lifecycle, limit: int
) -> None:
    slot = lifecycle.moments[0].responses["/slots"]["items"][0]
    for subject in (*subjects(lifecycle), f"address/{slot['private_ip']}"):
        for start in (0, 7, lifecycle.moments[4].position):
            whole = changes(lifecycle, subject, **{"from": f"position:{start}"})
            fields = {each.path: each.after for each in differences(None, whole["before"])}
            for change in paged(lifecycle, subject, start, limit):
                for field in change["fields"]:
                    assert fields.get(field["path"]) == field["before"]
                    fields[field["path"]] = field["after"]
            there = {path: value for path, value in fields.items() if value is not None}
            assert there == {each.path: each.after for each in differences(None, whole["after"])}


def paged(lifecycle: Lifecycle, subject: str, start: int, limit: int) -> Iterator[dict[str, Any]]:
    following: str | None = f"position:{start}"
    while following is not None:
        page = changes(lifecycle, subject, limit=str(limit), **{"from": following})
        yield from page["changes"]
        following = page["next_from"]


def test_each_history_change_names_its_event_actor_and_reason(lifecycle: Lifecycle) -> None:
    found = changes(lifecycle, f"allocation/{lifecycle.allocation}")["changes"]
    stream = f"allocation-{lifecycle.allocation}"
    recorded = lifecycle.plane.rows(
        "select position, type, actor, reason, correlation_id::text from ledger.event"
        " where stream_id = %(stream)s order by position",
        stream=stream,
    )
    assert [
        tuple(change[name] for name in ("position", "type", "actor", "reason", "correlation_id"))
        for change in found
    ] == recorded
    by_type = {change["type"]: change for change in found}
    releasing = by_type["allocation.releasing"]
    assert releasing["actor"].startswith("key:test")
    assert releasing["reason"].startswith(f"DELETE /v1/allocations/{lifecycle.allocation} req-")
    assert {"path": "/state", "before": "active", "after": "releasing"} in releasing["fields"]
    assert by_type["allocation.slice_ready"]["actor"] == "node:n1"


def test_history_range_before_the_first_event_has_no_changes(lifecycle: Lifecycle) -> None:
    for subject in subjects(lifecycle):
        found = changes(lifecycle, subject, to="position:1")
        assert (found["before"], found["after"], found["changes"], found["next_from"]) == (
            None,
            None,
            [],
            None,
        )


def test_event_pages_between_two_times_contain_every_event_of_the_range(lifecycle: Lifecycle) -> None:
    early, late = lifecycle.moments[2], lifecycle.moments[7]
    recorded = lifecycle.plane.rows(
        "select position, actor from ledger.event where position > %(early)s and position <= %(late)s order by position",
        early=early.position,
        late=late.position,
    )
    for range_ in (
        {"from": early.time.isoformat(), "to": late.time.isoformat()},
        {"from": f"position:{early.position}", "to": f"position:{late.position}"},
        {"after": f"position:{early.position}", "to": late.time.isoformat()},
    ):
        found, cursor = [], dict[str, str]()
        while True:
            page = get_view(lifecycle.plane, "/events", limit="2", **range_, **cursor).json()
            found += [(event["position"], event["actor"]) for event in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert found == recorded


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"from": "position:3", "to": "position:2"}, 422, "range_reversed"),
        ({"to": "position:999999"}, 409, "position_not_reached"),
        ({"to": "2999-01-01T00:00:00Z"}, 409, "in_the_future"),
        ({"from": "yesterday"}, 422, "invalid_value"),
    ],
)
def test_event_list_with_an_invalid_range_is_refused(
    lifecycle: Lifecycle, query: dict[str, str], status: int, code: str
) -> None:
    answer = get_view(lifecycle.plane, "/events", **query)
    assert answer.status_code == status
    assert {reason["code"] for reason in answer.json()["reasons"]} == {code}


def test_history_changes_between_two_times_contain_only_events_of_that_range(lifecycle: Lifecycle) -> None:
    early, late = lifecycle.moments[4], lifecycle.moments[7]
    query = {"from": early.time.isoformat(), "to": late.time.isoformat()}
    found = changes(lifecycle, f"allocation/{lifecycle.allocation}", **query)
    assert (found["from"]["position"], found["to"]["position"]) == (early.position, late.position)
    assert all(early.position < change["position"] <= late.position for change in found["changes"])
    path = f"/allocations/{lifecycle.allocation}"
    assert (found["before"], found["after"]) == (
        without_conditions(early.responses[path]),
        without_conditions(late.responses[path]),
    )


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("allocation/alc-00000000000000000000000000", 404, "unknown_allocation"),
        ("allocation/nonsense", 404, "unknown_allocation"),
        ("slot/n1/9", 404, "unknown_slot"),
        ("slot/n1", 404, "unknown_slot"),
        ("node/NOT-A-NODE", 404, "unknown_node"),
        ("address/203.0.113.7", 404, "unknown_address"),
        ("address/52:54:00:00:00", 404, "unknown_address"),
        ("address/%00", 422, "unstorable_character"),
        ("ingress/tcp/203.0.113.7:443", 404, "unknown_ingress"),
        ("ingress/%00", 422, "unstorable_character"),
        ("pigeon/n1", 422, "unknown_value"),
        ("node/n1/changes?from=position:3&to=position:2", 422, "range_reversed"),
        ("node/n1/changes?from=position:999999", 409, "position_not_reached"),
        ("node/n1/changes?from=x&to=y", 422, "invalid_value"),
    ],
)
def test_history_of_an_unknown_or_invalid_subject_is_refused_with_its_reason(
    lifecycle: Lifecycle, path: str, status: int, code: str
) -> None:
    answer = get_history(lifecycle, path)
    assert answer.status_code == status
    assert {reason["code"] for reason in answer.json()["reasons"]} == {code}


def get_history(lifecycle: Lifecycle, path: str) -> Any:
    with lifecycle.plane.client() as client:
        return client.get(f"/history/{path}")
