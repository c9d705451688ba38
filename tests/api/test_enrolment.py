"""A node trades its one-time token for a session by its own key, once."""

from uuid import uuid4

import redis

from tests.api.node import BEAT, QUEUE_PASSWORD, as_node, batch, desired, enrol, expect, survey, wanted
from tests.servers.plane import RunningPlane


def test_an_enrolled_node_is_known_to_the_api_and_to_its_queue(running_plane: RunningPlane) -> None:
    answer = enrol(running_plane, "n1", expect(running_plane, "n1"))
    assert answer.status_code == 200
    queue = answer.json()["queue"]
    mine = redis.Redis("127.0.0.1", queue["port"], username=queue["username"], password=QUEUE_PASSWORD)
    assert mine.ping()
    beat = as_node(running_plane, "n1").post("/heartbeat", json=BEAT)
    assert beat.status_code == 200
    assert running_plane.client().get("/nodes/n1").json()["state"] == "enrolled"


def test_the_same_host_may_ask_again_and_a_copied_token_opens_nothing(running_plane: RunningPlane) -> None:
    token = expect(running_plane, "n1")
    first = enrol(running_plane, "n1", token)
    assert enrol(running_plane, "n1", token).json() == first.json()
    copied = enrol(running_plane, "n1", token, credential="made-elsewhere")
    assert copied.status_code == 401
    assert copied.json()["reasons"][0]["code"] == "token_used"
    enrolled = running_plane.rows("select count(*) from ledger.event where type = 'node.identified'")
    assert enrolled == [(1,)]


def test_a_wrong_token_enrols_nobody(running_plane: RunningPlane) -> None:
    expect(running_plane, "n1")
    assert enrol(running_plane, "n1", "enrol_guessed-by-somebody").status_code == 401
    assert enrol(running_plane, "unheard-of", "enrol_guessed-by-somebody").status_code == 401


def test_a_report_is_taken_once_and_a_gap_is_refused(running_plane: RunningPlane) -> None:
    enrol(running_plane, "n1", expect(running_plane, "n1"))
    node, spool = as_node(running_plane, "n1"), str(uuid4())
    for _ in range(2):
        assert node.post("/reports", json=batch(spool, (1, survey()))).json() == {"sequence": 1}
    inspected = "select count(*) from ledger.event where type = 'node.inspected'"
    assert running_plane.rows(inspected) == [(1,)]
    gap = node.post("/reports", json=batch(spool, (3, survey(hostname="later"))))
    assert gap.status_code == 409
    assert gap.json()["reasons"][0]["code"] == "report_missing"
    assert running_plane.rows(inspected) == [(1,)]


def test_a_survey_that_says_nothing_new_is_no_event(running_plane: RunningPlane) -> None:
    enrol(running_plane, "n1", expect(running_plane, "n1"))
    node, spool = as_node(running_plane, "n1"), str(uuid4())
    node.post("/reports", json=batch(spool, (1, survey()), (2, survey())))
    last = running_plane.rows("select max(position) from ledger.event")
    node.post("/reports", json=batch(spool, (3, survey())))
    assert running_plane.rows("select max(position) from ledger.event") == last
    slots = running_plane.client().get("/slots").json()["items"]
    assert [(slot["id"], slot["state"]) for slot in slots] == [("n1/0", "discovered")]


def test_a_node_speaks_for_its_own_slots_alone(running_plane: RunningPlane) -> None:
    for name in ("n1", "n2"):
        enrol(running_plane, name, expect(running_plane, name))
        as_node(running_plane, name).post("/reports", json=batch(str(uuid4()), (1, survey())))
        as_node(running_plane, name).post("/heartbeat", json=BEAT)
    admin = running_plane.client()
    admin.post("/nodes/n1/slots/0/approve")
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV"
    made = admin.post("/allocations", json={"sku": "lab.small", "ssh_authorized_keys": [key]}).json()
    failed = {
        "kind": "slice.failed",
        "slot_id": "n1/0",
        "allocation_id": made["id"],
        "reason": {"code": "lie", "message": "told by a neighbour"},
    }
    assert as_node(running_plane, "n2").post("/reports", json=batch(str(uuid4()), (1, failed))).is_success
    assert admin.get(f"/allocations/{made['id']}").json()["state"] == "placed"
    assert wanted(as_node(running_plane, "n2")) == []


def test_a_slot_is_approved_once_and_only_when_it_was_discovered(running_plane: RunningPlane) -> None:
    enrol(running_plane, "n1", expect(running_plane, "n1"))
    as_node(running_plane, "n1").post("/reports", json=batch(str(uuid4()), (1, survey())))
    admin = running_plane.client()
    approved = admin.post("/nodes/n1/slots/0/approve")
    assert approved.status_code == 200
    assert approved.json()["private_ip"] == "10.100.1.10"
    assert admin.post("/nodes/n1/slots/0/approve").status_code == 409
    assert admin.post("/nodes/n1/slots/7/approve").status_code == 404
    claims = running_plane.rows("select kind, value from ledger.claim order by kind")
    assert [kind for kind, _ in claims] == ["ip", "mac", "subnet"]


def test_a_host_that_lost_its_disk_enrols_again_with_a_new_token(running_plane: RunningPlane) -> None:
    enrol(running_plane, "n1", expect(running_plane, "n1"))
    opened = running_plane.client().post("/nodes/n1/enrolment")
    assert opened.status_code == 201
    assert desired(as_node(running_plane, "n1")).status_code == 200
    again = enrol(running_plane, "n1", opened.json()["enrolment_token"], credential="made-after-the-loss")
    assert again.status_code == 200
    assert desired(as_node(running_plane, "n1")).status_code == 401
    assert running_plane.client().post("/nodes/nobody/enrolment").status_code == 404
