"""A stopped allocation keeps its slot, its address and its lease, and can be started again (ALC-8)."""

from datetime import timedelta

import pytest

from deploy.embedded.lab_catalogue import SKUS
from events.values import SkuName
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane


@pytest.fixture
def running(emptied_plane: RunningPlane) -> RunningAllocation:
    return RunningAllocation(emptied_plane, admit(emptied_plane, "n1"))


def test_stopped_allocation_loses_its_endpoints_and_keeps_slot_address_and_lease(
    running: RunningAllocation,
) -> None:
    before = running.view()
    assert (before["state"], len(before["endpoints"])) == ("active", 1)

    answer = running.request("stop")

    assert (answer.status_code, answer.json()["state"], answer.json()["endpoints"]) == (202, "stopping", [])
    running.report_stopped()
    after = running.view()
    assert (after["state"], after["endpoints"], after["slots"][0]["ready"]) == ("stopped", [], False)
    assert after["lease"] == before["lease"]
    for kept in ("slot_id", "mac_address", "private_ip"):
        assert after["slots"][0][kept] == before["slots"][0][kept]
    [slot] = running.plane.client().get("/slots").json()["items"]
    assert (slot["state"], slot["allocation_id"]) == ("claimed", running.id)


def test_started_allocation_is_active_once_its_node_reports_it_ready(running: RunningAllocation) -> None:
    running.request("stop")
    running.report_stopped()

    answer = running.request("start")

    assert (answer.status_code, answer.json()["state"]) == (202, "starting")
    running.report_ready()
    again = running.view()
    assert (again["state"], len(again["endpoints"])) == ("active", 1)
    assert running.event_types()[-6:] == [
        "stopping", "slice_stopped", "stopped", "starting", "slice_ready", "activated",
    ]  # fmt: skip


def test_deadlines_of_an_allocation_are_later_than_the_readiness_timeout_of_its_node(
    running: RunningAllocation,
) -> None:
    reason = {"code": "machine_not_running", "message": "it died"}
    running.report("slice.interrupted", order_id=running.newest_order(), reason=reason)
    running.report_ready()
    running.request("stop")
    running.report_stopped()
    running.request("start")

    waited = running.plane.rows(
        """select type, (data::jsonb ->> 'deadline')::timestamptz - recorded_at from ledger.event
            where stream_id = %(stream)s and type in
                  ('allocation.placed', 'allocation.slice_interrupted', 'allocation.starting')""",
        stream=f"allocation-{running.id}",
    )

    assert len(waited) == 3
    node_waits = timedelta(seconds=SKUS[SkuName("lab.small")].provisioning_seconds)
    assert [type_ for type_, within in waited if within < node_waits + timedelta(seconds=20)] == []


def test_stop_events_of_an_allocation_record_the_caller_and_whether_the_guest_was_powered_off_by_force(
    running: RunningAllocation,
) -> None:
    running.request("stop")
    running.report_stopped(forced=True)

    rows = running.plane.rows(
        "select data::jsonb, actor from ledger.event where type like 'allocation.%stop%' order by position"
    )

    assert rows[0][0]["reason"]["code"] == "stopped_by_caller"
    assert rows[0][1].startswith("key:")
    assert (rows[1][0]["forced"], rows[1][1]) == (True, "node:n1")


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_repeated_stop_or_start_of_an_allocation_adds_no_event(running: RunningAllocation, verb: str) -> None:
    running.request("stop")
    if verb == "start":
        running.report_stopped()
        running.request("start")
    before = running.event_types()

    assert running.request(verb).status_code == 202
    assert running.event_types() == before


def test_repeated_stop_request_with_one_idempotency_key_after_a_start_does_not_stop_again(
    running: RunningAllocation,
) -> None:
    key = {"Idempotency-Key": "once"}
    running.request("stop", **key)
    running.report_stopped()
    running.request("start")
    running.report_ready()

    again = running.request("stop", **key)

    assert (again.status_code, again.json()["state"]) == (202, "active")


def test_start_of_a_stopping_allocation_is_refused_with_its_state(running: RunningAllocation) -> None:
    running.request("stop")

    refused = running.request("start")

    assert refused.status_code == 409
    [reason] = refused.json()["reasons"]
    assert reason["code"] == "wrong_state"
    assert "is stopping" in reason["message"]


def test_stop_or_start_of_an_unknown_allocation_returns_404(emptied_plane: RunningPlane) -> None:
    for verb in ("stop", "start"):
        answer = emptied_plane.client().post(f"/allocations/alc-{'0' * 26}/{verb}")
        assert answer.status_code == 404


def test_stopped_allocation_can_be_released(running: RunningAllocation) -> None:
    running.request("stop")
    running.report_stopped()

    running.plane.client().delete(f"/allocations/{running.id}")
    assert running.view()["state"] == "releasing"
    running.report("slice.removed", absent=["link"])
    assert running.view()["state"] == "released"


def test_stop_of_an_allocation_with_leftovers_does_not_quarantine_its_slot(
    running: RunningAllocation,
) -> None:
    running.request("stop")

    running.report("slice.removal_incomplete", leftovers=["tap slice0"])

    assert (running.view()["state"], running.slot_state()) == ("stopping", "claimed")


def test_leftovers_of_an_allocation_stop_that_a_release_superseded_do_not_quarantine_the_slot(
    running: RunningAllocation,
) -> None:
    running.request("stop")
    stop = running.newest_order_of_kind("slice.stop")
    running.plane.client().delete(f"/allocations/{running.id}")

    running.report("slice.removal_incomplete", order_id=stop, leftovers=["tap slice0"])

    assert (running.view()["state"], running.slot_state()) == ("releasing", "releasing")


def test_failure_of_an_order_that_precedes_a_stop_does_not_fail_the_stop(running: RunningAllocation) -> None:
    apply = running.newest_order_of_kind("slice.apply")
    reason = {"code": "machine_not_running", "message": "it died"}
    running.report("slice.interrupted", order_id=apply, reason=reason)
    running.request("stop")

    running.report("slice.failed", order_id=apply, reason={"code": "not_reachable", "message": "unreachable"})

    assert running.view()["state"] == "stopping"


def test_report_of_an_earlier_stop_does_not_complete_a_later_stop(running: RunningAllocation) -> None:
    running.request("stop")
    first = running.newest_order_of_kind("slice.stop")
    running.report("slice.stopped", order_id=first, forced=False)
    running.request("start")
    running.report_ready()
    running.request("stop")

    running.report("slice.stopped", order_id=first, forced=False)
    assert running.view()["state"] == "stopping"
    running.report("slice.stopped", order_id=running.newest_order_of_kind("slice.stop"), forced=False)
    assert running.view()["state"] == "stopped"


def test_stop_of_an_allocation_is_refused_if_the_agent_does_not_support_the_stop_order(
    running: RunningAllocation,
) -> None:
    running.plane.rows("update work.node_session set capabilities = '{slice.apply/1}' returning node_id")

    refused = running.request("stop")

    assert refused.status_code == 409
    [reason] = refused.json()["reasons"]
    assert reason == {
        "code": "unsupported_by_agent",
        "message": "the agent on node n1 does not support slice.stop/1; upgrade it",
        "field": None,
        "parameter": None,
    }
    assert running.view()["state"] == "active"
