"""An allocation that is switched off keeps what it has, and can be switched on again (ALC-8)."""

from datetime import timedelta

import pytest

from control_plane.decisions.skus import SKUS
from events.values import SkuName
from tests.api.node import admit
from tests.api.reporting import Running
from tests.servers.plane import RunningPlane


@pytest.fixture
def running(running_plane: RunningPlane) -> Running:
    return Running(running_plane, admit(running_plane, "n1"))


def test_a_stop_takes_the_endpoints_and_leaves_slot_address_and_lease(running: Running) -> None:
    before = running.found()
    assert (before["state"], len(before["endpoints"])) == ("active", 1)

    answer = running.asked_to("stop")

    assert (answer.status_code, answer.json()["state"], answer.json()["endpoints"]) == (202, "stopping", [])
    running.is_off()
    after = running.found()
    assert (after["state"], after["endpoints"], after["slots"][0]["ready"]) == ("stopped", [], False)
    assert after["lease"] == before["lease"]
    for kept in ("slot_id", "mac_address", "private_ip"):
        assert after["slots"][0][kept] == before["slots"][0][kept]
    [slot] = running.plane.client().get("/slots").json()["items"]
    assert (slot["state"], slot["allocation_id"]) == ("claimed", running.id)


def test_what_is_started_again_is_active_once_its_node_says_so(running: Running) -> None:
    running.asked_to("stop")
    running.is_off()

    answer = running.asked_to("start")

    assert (answer.status_code, answer.json()["state"]) == (202, "starting")
    running.comes_up()
    again = running.found()
    assert (again["state"], len(again["endpoints"])) == ("active", 1)
    assert running.types()[-6:] == [
        "stopping", "slice_stopped", "stopped", "starting", "slice_ready", "activated",
    ]  # fmt: skip


def test_a_node_that_waits_for_readiness_in_vain_says_why_before_the_allocations_deadline(
    running: Running,
) -> None:
    why = {"code": "machine_not_running", "message": "it died"}
    running.says("slice.interrupted", of=running.newest_order(), reason=why)
    running.comes_up()
    running.asked_to("stop")
    running.is_off()
    running.asked_to("start")

    waited = running.plane.rows(
        """select type, (data::jsonb ->> 'deadline')::timestamptz - recorded_at from ledger.event
            where stream_id = %(stream)s and type in
                  ('allocation.placed', 'allocation.slice_interrupted', 'allocation.starting')""",
        stream=f"allocation-{running.id}",
    )

    assert len(waited) == 3
    node_waits = SKUS[SkuName("lab.small")].provisioning
    assert [type_ for type_, within in waited if within < node_waits + timedelta(seconds=20)] == []


def test_the_ledger_says_who_wanted_it_off_and_whether_the_guest_had_to_be_forced(running: Running) -> None:
    running.asked_to("stop")
    running.is_off(forced=True)

    told = running.plane.rows(
        "select data::jsonb, actor from ledger.event where type like 'allocation.%stop%' order by position"
    )

    assert told[0][0]["reason"]["code"] == "stopped_by_caller"
    assert told[0][1].startswith("key:")
    assert (told[1][0]["forced"], told[1][1]) == (True, "node:n1")


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_asking_again_changes_nothing(running: Running, verb: str) -> None:
    running.asked_to("stop")
    if verb == "start":
        running.is_off()
        running.asked_to("start")
    before = running.types()

    assert running.asked_to(verb).status_code == 202
    assert running.types() == before


def test_a_request_that_was_sent_again_after_a_start_does_not_stop_anew(running: Running) -> None:
    key = {"Idempotency-Key": "once"}
    running.asked_to("stop", **key)
    running.is_off()
    running.asked_to("start")
    running.comes_up()

    again = running.asked_to("stop", **key)

    assert (again.status_code, again.json()["state"]) == (202, "active")


def test_what_is_stopping_is_not_started_and_says_why(running: Running) -> None:
    running.asked_to("stop")

    refused = running.asked_to("start")

    assert refused.status_code == 409
    [why] = refused.json()["reasons"]
    assert why["code"] == "wrong_state"
    assert "is stopping" in why["message"]


def test_what_is_unknown_is_neither_stopped_nor_started(running_plane: RunningPlane) -> None:
    for verb in ("stop", "start"):
        answer = running_plane.client().post(f"/allocations/alc-{'0' * 26}/{verb}")
        assert answer.status_code == 404


def test_a_stopped_allocation_is_released_like_any_other(running: Running) -> None:
    running.asked_to("stop")
    running.is_off()

    running.plane.client().delete(f"/allocations/{running.id}")
    assert running.found()["state"] == "releasing"
    running.says("slice.removed", absent=["link"])
    assert running.found()["state"] == "released"


def test_a_stop_that_is_not_proved_withholds_no_slot(running: Running) -> None:
    running.asked_to("stop")

    running.says("slice.remains", leftovers=["tap slice0"])

    assert (running.found()["state"], running.slot_state()) == ("stopping", "claimed")


def test_leftovers_of_a_stop_withhold_no_slot_from_the_release_that_overtook_it(running: Running) -> None:
    running.asked_to("stop")
    stop = running.order("slice.stop")
    running.plane.client().delete(f"/allocations/{running.id}")

    running.says("slice.remains", of=stop, leftovers=["tap slice0"])

    assert (running.found()["state"], running.slot_state()) == ("releasing", "releasing")


def test_a_slice_that_failed_before_it_was_to_be_off_fails_no_stop(running: Running) -> None:
    apply = running.order("slice.apply")
    why = {"code": "machine_not_running", "message": "it died"}
    running.says("slice.interrupted", of=apply, reason=why)
    running.asked_to("stop")

    running.says("slice.failed", of=apply, reason={"code": "not_reachable", "message": "silent"})

    assert running.found()["state"] == "stopping"


def test_the_proof_of_one_stop_is_none_of_the_next(running: Running) -> None:
    running.asked_to("stop")
    first = running.order("slice.stop")
    running.says("slice.stopped", of=first, forced=False)
    running.asked_to("start")
    running.comes_up()
    running.asked_to("stop")

    running.says("slice.stopped", of=first, forced=False)
    assert running.found()["state"] == "stopping"
    running.says("slice.stopped", of=running.order("slice.stop"), forced=False)
    assert running.found()["state"] == "stopped"


def test_a_stop_is_refused_where_an_agent_does_not_know_the_order(running: Running) -> None:
    running.plane.rows("update work.node_session set speaks = '{slice.apply/1}' returning node_id")

    refused = running.asked_to("stop")

    assert refused.status_code == 409
    [why] = refused.json()["reasons"]
    assert why == {
        "code": "not_spoken",
        "message": "the agent of node n1 does not speak slice.stop/1",
        "field": None,
        "parameter": None,
    }
    assert running.found()["state"] == "active"
