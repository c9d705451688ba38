"""One thing's past: what was true, what changed it, who did that and why."""

from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.time_travel.differences import differences
from deploy.embedded.postgres import PostgresServer
from tests.api.lives import Life, ask, lived
from tests.servers.plane import running


@pytest.fixture(scope="module")
def life(postgres_server: PostgresServer) -> Iterator[Life]:
    with running(postgres_server) as plane:
        yield lived(plane)


def subjects(life: Life) -> dict[str, str]:
    """What the past of this life can be asked of, and the path that told of each while it was the present."""
    return {
        f"allocation/{life.allocation}": f"/allocations/{life.allocation}",
        "slot/n1/0": "/slots",
        "node/n1": "/nodes/n1",
    }


def changes(life: Life, subject: str, **query: str) -> dict[str, Any]:
    answer = ask(life.plane, f"/history/{subject}/changes", **query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def of_the_past(said: dict[str, Any]) -> dict[str, Any]:
    """An allocation's view without what heartbeats add to it."""
    return said | {"conditions": None}


def test_the_state_of_a_thing_is_what_the_present_said_of_it(life: Life) -> None:
    for moment in life.moments:
        for subject, path in subjects(life).items():
            told = ask(life.plane, f"/history/{subject}", at=f"position:{moment.position}").json()
            said = moment.said[path]["items"][0] if path == "/slots" else moment.said[path]
            if path == "/slots":
                said = said | {"blocked_by": None}
            if path == "/nodes/n1":
                said = said | {
                    "state": "enrolled",
                    "seen_at": None,
                    "spooled_reports": None,
                    "blocked_by": None,
                }
                # The slots' histories have that.
                del said["slot_drift"]
            if path.startswith("/allocations/"):
                said = of_the_past(said)
            assert told["state"] == said
            assert told["at"]["cursor"] == f"1.{moment.position}"


def test_an_address_leads_to_the_slot_that_holds_it_and_to_who_has_that(life: Life) -> None:
    slot = life.moments[0].said["/slots"]["items"][0]
    for name in (slot["private_ip"], slot["mac_address"], slot["mac_address"].upper()):
        for moment in life.moments:
            told = ask(life.plane, f"/history/address/{name}", at=f"position:{moment.position}").json()
            [holder] = told["state"]["holders"]
            assert holder["slot"] == moment.said["/slots"]["items"][0] | {"blocked_by": None}
            tenant = holder["allocation"] and holder["allocation"]["id"]
            assert tenant == holder["slot"]["allocation_id"]


def test_before_it_was_there_a_thing_has_no_state(life: Life) -> None:
    slot = life.moments[0].said["/slots"]["items"][0]
    for subject in (*subjects(life), f"address/{slot['private_ip']}"):
        told = ask(life.plane, f"/history/{subject}", at="position:1").json()
        assert told["state"] is None


@pytest.mark.parametrize("limit", [1, 3, 200])
def test_the_changes_lead_from_before_to_after(life: Life, limit: int) -> None:
    slot = life.moments[0].said["/slots"]["items"][0]
    for subject in (*subjects(life), f"address/{slot['private_ip']}"):
        for start in (0, 7, life.moments[4].position):
            whole = changes(life, subject, **{"from": f"position:{start}"})
            fields = {each.path: each.after for each in differences(None, whole["before"])}
            for change in paged(life, subject, start, limit):
                for field in change["fields"]:
                    assert fields.get(field["path"]) == field["before"]
                    fields[field["path"]] = field["after"]
            there = {path: value for path, value in fields.items() if value is not None}
            assert there == {each.path: each.after for each in differences(None, whole["after"])}


def paged(life: Life, subject: str, start: int, limit: int) -> Iterator[dict[str, Any]]:
    following: str | None = f"position:{start}"
    while following is not None:
        page = changes(life, subject, limit=str(limit), **{"from": following})
        yield from page["changes"]
        following = page["next_from"]


def test_each_change_names_the_event_that_made_it(life: Life) -> None:
    found = changes(life, f"allocation/{life.allocation}")["changes"]
    stream = f"allocation-{life.allocation}"
    told = life.plane.rows(
        "select position, type, actor, why, correlation_id::text from ledger.event"
        " where stream_id = %(stream)s order by position",
        stream=stream,
    )
    assert [
        tuple(change[name] for name in ("position", "type", "actor", "why", "correlation_id"))
        for change in found
    ] == told
    by_type = {change["type"]: change for change in found}
    releasing = by_type["allocation.releasing"]
    assert releasing["actor"].startswith("key:test")
    assert releasing["why"].startswith(f"DELETE /v1/allocations/{life.allocation} req-")
    assert {"path": "/state", "before": "active", "after": "releasing"} in releasing["fields"]
    assert by_type["allocation.slice_ready"]["actor"] == "node:n1"


def test_a_stretch_before_a_thing_was_there_has_no_changes(life: Life) -> None:
    for subject in subjects(life):
        found = changes(life, subject, to="position:1")
        assert (found["before"], found["after"], found["changes"], found["next_from"]) == (
            None,
            None,
            [],
            None,
        )


def test_what_happened_between_two_times_is_listed_page_by_page(life: Life) -> None:
    early, late = life.moments[2], life.moments[7]
    told = life.plane.rows(
        "select position, actor from ledger.event where position > %(early)s and position <= %(late)s order by position",
        early=early.position,
        late=late.position,
    )
    for stretch in (
        {"from": early.time.isoformat(), "to": late.time.isoformat()},
        {"from": f"position:{early.position}", "to": f"position:{late.position}"},
        {"after": f"position:{early.position}", "to": late.time.isoformat()},
    ):
        found, cursor = [], dict[str, str]()
        while True:
            page = ask(life.plane, "/events", limit="2", **stretch, **cursor).json()
            found += [(event["position"], event["actor"]) for event in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert found == told


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"from": "position:3", "to": "position:2"}, 422, "from_behind_to"),
        ({"to": "position:999999"}, 409, "not_reached"),
        ({"to": "2999-01-01T00:00:00Z"}, 409, "in_the_future"),
        ({"from": "yesterday"}, 422, "invalid_value"),
    ],
)
def test_a_stretch_that_cannot_be_listed_is_refused(
    life: Life, query: dict[str, str], status: int, code: str
) -> None:
    answer = ask(life.plane, "/events", **query)
    assert answer.status_code == status
    assert {reason["code"] for reason in answer.json()["reasons"]} == {code}


def test_between_two_times_only_what_was_recorded_in_between_is_told(life: Life) -> None:
    early, late = life.moments[4], life.moments[7]
    query = {"from": early.time.isoformat(), "to": late.time.isoformat()}
    found = changes(life, f"allocation/{life.allocation}", **query)
    assert (found["from"]["position"], found["to"]["position"]) == (early.position, late.position)
    assert all(early.position < change["position"] <= late.position for change in found["changes"])
    path = f"/allocations/{life.allocation}"
    assert (found["before"], found["after"]) == (
        of_the_past(early.said[path]),
        of_the_past(late.said[path]),
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
        ("mapping/tcp/203.0.113.7:443", 404, "unknown_mapping"),
        ("mapping/%00", 422, "unstorable_character"),
        ("pigeon/n1", 422, "unknown_value"),
        ("node/n1/changes?from=position:3&to=position:2", 422, "from_behind_to"),
        ("node/n1/changes?from=position:999999", 409, "not_reached"),
        ("node/n1/changes?from=x&to=y", 422, "invalid_value"),
    ],
)
def test_what_has_no_past_is_refused_with_its_reason(life: Life, path: str, status: int, code: str) -> None:
    answer = ask_raw(life, path)
    assert answer.status_code == status
    assert {reason["code"] for reason in answer.json()["reasons"]} == {code}


def ask_raw(life: Life, path: str) -> Any:
    with life.plane.client() as client:
        return client.get(f"/history/{path}")
