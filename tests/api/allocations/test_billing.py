"""The API closes billing periods, and bills late events as corrections of the closed periods (PLT-9)."""

import csv
import io
from datetime import timedelta
from typing import Any

import pytest

from tests.api.access.principals import create_project, issue
from tests.api.allocations.billing import (
    MILLISECOND,
    close,
    get,
    grant_late,
    granted_at,
    text,
    until_known,
)
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane


@pytest.fixture
def running(emptied_plane: RunningPlane) -> RunningAllocation:
    create_project(emptied_plane, "red")
    made = RunningAllocation(emptied_plane, admit(emptied_plane, "n1"), project="red")
    until_known(emptied_plane)
    return made


def entries(plane: RunningPlane, period: str) -> list[dict[str, Any]]:
    return list(get(plane, "/usage/entries", {"period": period})["items"])


def test_late_event_is_billed_as_reversal_and_re_entry_and_the_closed_period_keeps_its_entries(
    running: RunningAllocation,
) -> None:
    plane, start = running.plane, granted_at(running)
    begin, end = start - timedelta(hours=1), start + 4 * MILLISECOND
    closed = close(plane, "first", begin, end)
    assert closed.status_code == 200, closed.text
    before = entries(plane, "first")
    assert [each["amount"]["slot_seconds"] for each in before] == ["0.004000"]
    assert entries(plane, "open")[0]["starts_at"] == before[0]["ends_at"]

    position = grant_late(running, start + MILLISECOND)
    until_known(plane)

    assert entries(plane, "first") == before
    metered, reversal, re_entry = entries(plane, "open")
    name = f"first/{running.id}"
    assert metered["kind"] == "metered"
    assert (reversal["id"], reversal["corrects"]) == (f"open/{name}/reversal", f"first/{name}/metered")
    assert (re_entry["id"], re_entry["corrects"]) == (f"open/{name}/re_entry", f"first/{name}/metered")
    assert [each["amount"]["slot_seconds"] for each in (reversal, re_entry)] == ["-0.004000", "0.003000"]
    assert [each["service_period"] for each in (metered, reversal, re_entry)] == ["open", "first", "first"]
    assert [each["events"][-1]["position"] for each in (reversal, re_entry)] == [position, position]

    second_end = end + MILLISECOND
    assert close(plane, "second", end, second_end).status_code == 200
    bill = get(plane, "/usage/periods/second")
    parts = [bill[each]["slot_seconds"] for each in ("metered", "corrections", "total")]
    assert parts == ["0.001000", "-0.001000", "0.000000"]
    assert [each["kind"] for each in entries(plane, "second")] == ["metered", "reversal", "re_entry"]
    assert [each["kind"] for each in entries(plane, "open")] == ["metered"]

    grant_late(running, start + 2 * MILLISECOND)
    until_known(plane)
    _, reversal, re_entry = entries(plane, "open")
    assert reversal["corrects"] == re_entry["corrects"] == f"second/{name}/re_entry"
    assert get(plane, "/usage", {"period": "first"})["total"]["slot_seconds"] == "0.004000"
    whole = get(plane, "/usage", {"from": text(begin), "to": text(second_end)})["total"]
    assert whole["slot_seconds"] == "0.003000"


def test_closed_period_is_listed_with_its_event_before_the_open_period(running: RunningAllocation) -> None:
    plane, start = running.plane, granted_at(running)
    [alone] = get(plane, "/usage/periods")["items"]
    assert (alone["name"], alone["state"], alone["through"]) == ("open", "open", None)
    for name in ("first", "second"):
        assert close(plane, name, start, start + MILLISECOND).is_success
        start += MILLISECOND

    forward = get(plane, "/usage/periods")["items"]
    assert [each["name"] for each in forward] == ["first", "second", "open"]
    assert get(plane, "/usage/periods", {"order": "desc"})["items"] == forward[::-1]
    for order, wanted in (("asc", forward), ("desc", forward[::-1])):
        found, cursor = list[dict[str, Any]](), ""
        while True:
            query = {"order": order, "limit": "1"} | ({"cursor": cursor} if cursor else {})
            page = get(plane, "/usage/periods", query)
            found += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = page["next_cursor"]
        assert found == wanted
    events = get(plane, "/events", {"type": "billing.period_closed"})["items"]
    assert [each["position"] for each in events] == [each["position"] for each in forward[:2]]
    assert [each["data"]["through"] for each in events] == [each["through"] for each in forward[:2]]
    assert forward[0]["closed_by"].startswith("key:")


def test_period_is_closed_once_and_only_by_an_admin_after_its_end_and_without_a_gap(
    running: RunningAllocation,
) -> None:
    plane, start = running.plane, granted_at(running)
    end = start + MILLISECOND
    auditor = issue(plane, "auditor", role="auditor", projects=[]).headers
    refused = close(plane, "first", start, end, **auditor)
    assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (403, "role_missing")
    assert close(plane, "first", start, end).status_code == 200

    again = close(plane, "first", start, end)
    assert again.json() == get(plane, "/usage/periods/first")
    for name, times, codes in (
        ("first", (start, end + MILLISECOND), ["period_closed"]),
        ("second", (end + MILLISECOND, end + 2 * MILLISECOND), ["period_not_adjacent"]),
        ("second", (end, end + timedelta(days=1)), ["period_not_ended"]),
    ):
        answer = close(plane, name, *times)
        assert (answer.status_code, [each["code"] for each in answer.json()["reasons"]]) == (409, codes)
    assert len(get(plane, "/events", {"type": "billing.period_closed"})["items"]) == 1


def test_bill_shows_a_caller_its_own_projects_only(running: RunningAllocation) -> None:
    plane, start = running.plane, granted_at(running)
    create_project(plane, "blue")
    assert close(plane, "first", start, start + MILLISECOND).is_success
    own, other = (issue(plane, name, projects=[name]).headers for name in ("red", "blue"))
    for headers, seconds in ((own, "0.001000"), (other, "0.000000")):
        assert get(plane, "/usage/periods/first", headers=headers)["total"]["slot_seconds"] == seconds
        assert get(plane, "/usage", {"period": "first"}, headers)["total"]["slot_seconds"] == seconds


def exported(plane: RunningPlane, query: dict[str, str], headers: dict[str, str]) -> list[dict[str, str]]:
    with plane.client(**headers) as client, client.stream("GET", "/usage/export", params=query) as answer:
        assert answer.headers["content-type"] == "text/csv; charset=utf-8; header=present"
        content = answer.read().decode()
    assert answer.status_code == 200, content
    return [*csv.DictReader(io.StringIO(content, newline=""), strict=True)]


def test_exports_have_the_entries_of_the_bill_and_for_a_caller_those_of_its_projects_only(
    running: RunningAllocation,
) -> None:
    plane, start = running.plane, granted_at(running)
    create_project(plane, "blue")
    own, other = (issue(plane, name, projects=[name]).headers for name in ("red", "blue"))
    assert close(plane, "first", start, start + 4 * MILLISECOND).is_success
    grant_late(running, start + MILLISECOND)
    until_known(plane)
    end = start + 5 * MILLISECOND
    assert close(plane, "second", start + 4 * MILLISECOND, end).is_success

    wanted = entries(plane, "second")
    found = exported(plane, {"period": "second"}, own)
    for line, entry in zip(found, wanted, strict=True):
        assert (line["entry_id"], line["corrects"]) == (entry["id"], entry["corrects"] or "")
        assert (line["slot_seconds"], line["price"]) == tuple(entry["amount"].values())
        assert line["events"].split() == [str(each["position"]) for each in entry["events"]]
    charges = exported(plane, {"period": "second", "format": "focus"}, own)
    assert [each["ChargeClass"] for each in charges] == ["", "Correction", "Correction"]
    assert [each["x_EntryId"] for each in charges] == [each["id"] for each in wanted]
    assert {each["BillingPeriodEnd"] for each in charges} == {text(end)}
    assert [each["SubAccountId"] for each in charges] == ["red"] * 3
    assert [each["kind"] for each in exported(plane, {"to": text(end)}, own)] == ["metered"]
    for query in ({"period": "second"}, {"period": "second", "format": "focus"}, {}):
        assert exported(plane, query, other) == []


def test_invalid_request_for_a_billing_export_is_refused_with_the_reason(shared_plane: RunningPlane) -> None:
    with shared_plane.client() as client:
        for query, status, code in (
            ({"format": "focus"}, 422, "required"),
            ({"format": "xlsx"}, 422, "unknown_value"),
            ({"period": "1999-01"}, 404, "unknown_period"),
        ):
            answer = client.get("/usage/export", params=query)
            assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (status, code), answer.text


def test_billing_request_with_the_name_of_a_period_that_is_not_closed_is_refused(
    shared_plane: RunningPlane,
) -> None:
    with shared_plane.client() as client:
        for path in ("/usage?period=1999-01", "/usage/entries?period=1999-01", "/usage/periods/1999-01"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (404, "unknown_period"), path
        both = client.get("/usage", params={"period": "open", "from": "2026-01-01T00:00:00Z"})
        assert (both.status_code, both.json()["reasons"][0]["code"]) == (422, "range_and_period")


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("november", {}, "required"),
        ("2026-11", {"starts_at": "2026-11-01T00:00:00Z"}, "required"),
        ("x", {"starts_at": "2026-12-01T00:00:00Z", "ends_at": "2026-11-01T00:00:00Z"}, "range_reversed"),
        ("x", {"starts_at": "position:3", "ends_at": "2026-11-01T00:00:00Z"}, "invalid_value"),
        ("open", {}, "invalid_value"),
        ("A", {}, "invalid_value"),
    ],
)
def test_malformed_request_to_close_a_period_is_refused_with_the_reason(
    shared_plane: RunningPlane, name: str, body: dict[str, str], code: str
) -> None:
    answer = shared_plane.client().post(f"/usage/periods/{name}/close", json=body)
    assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (422, code), answer.text
