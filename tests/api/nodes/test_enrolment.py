"""A node exchanges its one-time token for a session, once, and proves that it has its key."""

from uuid import uuid4

import redis

from tests.api.node import (
    BEAT,
    QUEUE_PASSWORD,
    as_node,
    batch,
    desired_orders,
    enrol,
    register_node,
    request_desired_state,
    survey,
)
from tests.servers.plane import RunningPlane


def test_enrolled_node_can_connect_to_its_queue_and_send_heartbeats(emptied_plane: RunningPlane) -> None:
    answer = enrol(emptied_plane, "n1", register_node(emptied_plane, "n1"))
    assert answer.status_code == 200
    queue = answer.json()["queue"]
    connection = redis.Redis("127.0.0.1", queue["port"], username=queue["username"], password=QUEUE_PASSWORD)
    assert connection.ping()
    beat = as_node(emptied_plane, "n1").post("/heartbeat", json=BEAT)
    assert beat.status_code == 200
    assert emptied_plane.client().get("/nodes/n1").json()["state"] == "enrolled"


def test_repeated_enrolment_returns_the_same_session_and_a_copied_token_is_refused(
    emptied_plane: RunningPlane,
) -> None:
    token = register_node(emptied_plane, "n1")
    first = enrol(emptied_plane, "n1", token)
    assert enrol(emptied_plane, "n1", token).json() == first.json()
    copied = enrol(emptied_plane, "n1", token, credential="made-elsewhere")
    assert copied.status_code == 401
    assert copied.json()["reasons"][0]["code"] == "token_used"
    enrolled = emptied_plane.rows("select count(*) from ledger.event where type = 'node.enrolled'")
    assert enrolled == [(1,)]


def test_enrolment_with_a_wrong_token_is_refused(emptied_plane: RunningPlane) -> None:
    register_node(emptied_plane, "n1")
    assert enrol(emptied_plane, "n1", "enrol_guessed-token").status_code == 401
    assert enrol(emptied_plane, "not-registered", "enrol_guessed-token").status_code == 401


def test_repeated_report_is_recorded_once_and_a_sequence_gap_is_refused(emptied_plane: RunningPlane) -> None:
    enrol(emptied_plane, "n1", register_node(emptied_plane, "n1"))
    node, spool = as_node(emptied_plane, "n1"), str(uuid4())
    for _ in range(2):
        assert node.post("/reports", json=batch(spool, (1, survey()))).json() == {"sequence": 1}
    inspected = "select count(*) from ledger.event where type = 'node.inspected'"
    assert emptied_plane.rows(inspected) == [(1,)]
    gap = node.post("/reports", json=batch(spool, (3, survey(hostname="later"))))
    assert gap.status_code == 409
    assert gap.json()["reasons"][0]["code"] == "report_missing"
    assert emptied_plane.rows(inspected) == [(1,)]


def test_survey_without_changes_adds_no_event(emptied_plane: RunningPlane) -> None:
    enrol(emptied_plane, "n1", register_node(emptied_plane, "n1"))
    node, spool = as_node(emptied_plane, "n1"), str(uuid4())
    node.post("/reports", json=batch(spool, (1, survey()), (2, survey())))
    last = emptied_plane.rows("select max(position) from ledger.event")
    node.post("/reports", json=batch(spool, (3, survey())))
    assert emptied_plane.rows("select max(position) from ledger.event") == last
    slots = emptied_plane.client().get("/slots").json()["items"]
    assert [(slot["id"], slot["state"]) for slot in slots] == [("n1/0", "discovered")]


def test_report_of_a_node_about_a_slot_of_another_node_changes_nothing(emptied_plane: RunningPlane) -> None:
    for name in ("n1", "n2"):
        enrol(emptied_plane, name, register_node(emptied_plane, name))
        as_node(emptied_plane, name).post("/reports", json=batch(str(uuid4()), (1, survey())))
        as_node(emptied_plane, name).post("/heartbeat", json=BEAT)
    admin = emptied_plane.client()
    admin.post("/nodes/n1/slots/0/approve")
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV"
    made = admin.post("/allocations", json={"sku": "lab.small", "ssh_authorized_keys": [key]}).json()
    failed = {
        "kind": "slice.failed",
        "slot_id": "n1/0",
        "allocation_id": made["id"],
        "reason": {"code": "lie", "message": "reported by another node"},
    }
    assert as_node(emptied_plane, "n2").post("/reports", json=batch(str(uuid4()), (1, failed))).is_success
    assert admin.get(f"/allocations/{made['id']}").json()["state"] == "placed"
    assert desired_orders(as_node(emptied_plane, "n2")) == []


def test_approval_of_an_approved_or_unknown_slot_is_refused(emptied_plane: RunningPlane) -> None:
    enrol(emptied_plane, "n1", register_node(emptied_plane, "n1"))
    as_node(emptied_plane, "n1").post("/reports", json=batch(str(uuid4()), (1, survey())))
    admin = emptied_plane.client()
    approved = admin.post("/nodes/n1/slots/0/approve")
    assert approved.status_code == 200
    assert approved.json()["private_ip"] == "10.100.1.10"
    assert admin.post("/nodes/n1/slots/0/approve").status_code == 409
    assert admin.post("/nodes/n1/slots/7/approve").status_code == 404
    claims = emptied_plane.rows("select kind, value from ledger.claim order by kind")
    assert [kind for kind, _ in claims] == ["ip", "mac", "subnet"]


def test_node_that_lost_its_disk_enrols_again_with_a_new_token(emptied_plane: RunningPlane) -> None:
    enrol(emptied_plane, "n1", register_node(emptied_plane, "n1"))
    opened = emptied_plane.client().post("/nodes/n1/enrolment")
    assert opened.status_code == 201
    assert request_desired_state(as_node(emptied_plane, "n1")).status_code == 200
    again = enrol(emptied_plane, "n1", opened.json()["enrolment_token"], credential="made-after-the-loss")
    assert again.status_code == 200
    assert request_desired_state(as_node(emptied_plane, "n1")).status_code == 401
    assert emptied_plane.client().post("/nodes/unknown/enrolment").status_code == 404
