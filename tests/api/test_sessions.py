"""Sessions of nodes: renewed by the node's key, one after the other, refused to copies, ended by time and by admins."""

import asyncio
import threading
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis

from control_plane.commands.identity import note_superseded
from control_plane.origin import Origin
from control_plane.sessions import Superseded
from control_plane.settings import Settings
from control_plane.wiring import plane as control_plane_on
from events.values import NodeId
from tasks.agent_api import EnrolmentClaims
from tasks.signing import Signer, new_private_key
from tests.api.node import (
    BEAT,
    CREDENTIAL,
    QUEUE_PASSWORD,
    admit,
    allocate,
    as_node,
    batch,
    blocked,
    desired,
    digest,
    enrol,
    enrolment,
    expect,
    key_of,
    renew,
    renewal,
    wanted,
)
from tests.servers.plane import RunningPlane
from tests.waiting import until

OTHER_KEY = Signer.of_pem(new_private_key())


@pytest.fixture
def plane(running_plane: RunningPlane) -> RunningPlane:
    """With `n1` enrolled, at its first session."""
    assert enrol(running_plane, "n1", expect(running_plane, "n1")).json()["number"] == 1
    return running_plane


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["reasons"][0]["code"])


def is_known(plane: RunningPlane, credential: str) -> bool:
    return as_node(plane, "n1", credential).post("/heartbeat", json=BEAT).is_success


def queue(plane: RunningPlane, password: str, name: str = "n1") -> redis.Redis:
    return redis.Redis("127.0.0.1", plane.redis.port, username=f"node-{name}", password=password)


def is_let_in(plane: RunningPlane, password: str) -> bool:
    try:
        with queue(plane, password) as client:
            return bool(client.ping())
    except (redis.AuthenticationError, redis.ConnectionError):
        return False


def connections(plane: RunningPlane) -> list[str]:
    """Of the node to its queue, by Redis's id of each."""
    with redis.Redis.from_url(plane.redis.url) as admin:
        return [str(each["id"]) for each in admin.client_list() if each["user"] == "node-n1"]


def events(plane: RunningPlane, type_: str) -> int:
    count: int = plane.rows("select count(*) from ledger.event where type = %(type)s", type=type_)[0][0]
    return count


def shown(plane: RunningPlane) -> dict[str, Any]:
    found: dict[str, Any] = plane.client().get("/nodes/n1").json()
    return found


async def record(settings: Settings, superseded: Superseded) -> None:
    origin = Origin(actor="node:n1", why="renewal", correlation_id=uuid4())
    async with control_plane_on(settings) as made:
        await made.handle(note_superseded(superseded, origin))


def test_a_renewal_brings_a_new_session_and_ends_the_credential_of_the_old(plane: RunningPlane) -> None:
    answer = renew(plane, renewal("n1", 1, "second", password="pw-2"))
    assert answer.status_code == 200
    granted = answer.json()
    assert (granted["number"], granted["lifetime_seconds"]) == (2, 900.0)
    assert is_known(plane, "second")
    assert not is_known(plane, CREDENTIAL)
    assert events(plane, "node.agent_superseded") == 0


def test_the_same_renewal_asked_again_is_the_same_session(plane: RunningPlane) -> None:
    asked = renewal("n1", 1, "second")
    assert [renew(plane, asked).json()["number"] for _ in range(3)] == [2, 2, 2]
    assert is_known(plane, "second")


def test_the_queue_knows_the_password_of_the_newest_session_and_of_the_one_before(
    plane: RunningPlane,
) -> None:
    renew(plane, renewal("n1", 1, "second", password="pw-2"))
    assert [is_let_in(plane, word) for word in (QUEUE_PASSWORD, "pw-2")] == [True, True]
    renew(plane, renewal("n1", 2, "third", presented="second", password="pw-3"))
    assert [is_let_in(plane, word) for word in (QUEUE_PASSWORD, "pw-2", "pw-3")] == [False, True, True]


def test_a_renewal_ends_connections_so_a_password_that_is_past_opens_nothing_any_more(
    plane: RunningPlane,
) -> None:
    of_a_copy = queue(plane, QUEUE_PASSWORD)
    assert of_a_copy.ping()
    [before] = connections(plane)
    renew(plane, renewal("n1", 1, "second", password="pw-2"))
    assert before not in connections(plane)
    assert of_a_copy.ping(), "it is let in again by the password of the session before"
    renew(plane, renewal("n1", 2, "third", presented="second", password="pw-3"))
    with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
        of_a_copy.ping()


def test_a_copy_that_comes_second_is_refused_recorded_once_and_shown(plane: RunningPlane) -> None:
    assert renew(plane, renewal("n1", 1, "of-the-original")).is_success
    for attempt in range(4):
        refused = renew(plane, renewal("n1", 1, f"of-the-copy-{attempt}"))
        assert (refused.status_code, code_of(refused)) == (409, "superseded")
    assert events(plane, "node.agent_superseded") == 1
    assert plane.rows("select about, code, times from work.refusal") == [("session:1", "superseded", 4)]
    node = shown(plane)
    assert node["superseded_session"] == 1
    assert node["superseded_at"] is not None
    assert is_known(plane, "of-the-original")
    assert not is_known(plane, "of-the-copy-0")


def test_a_copy_that_is_found_out_loses_its_connections_and_its_password(plane: RunningPlane) -> None:
    copied = queue(plane, QUEUE_PASSWORD)
    assert copied.ping()
    renew(plane, renewal("n1", 1, "of-the-original", password="pw-2"))
    assert renew(plane, renewal("n1", 1, "of-the-copy")).status_code == 409
    with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
        copied.ping()
    assert [is_let_in(plane, word) for word in (QUEUE_PASSWORD, "pw-2")] == [False, True]


def test_a_copy_that_lies_about_its_session_is_refused_and_not_told_the_number(plane: RunningPlane) -> None:
    assert renew(plane, renewal("n1", 1, "second")).is_success
    assert renew(plane, renewal("n1", 2, "third", presented="second")).is_success
    first = renew(plane, renewal("n1", 1, "of-the-copy"))
    assert first.status_code == 409
    assert "3" not in first.json()["reasons"][0]["message"].replace("n1", "")
    for lie in (2, 3, 4, 5, 900):
        refused = renew(plane, renewal("n1", lie, f"of-the-copy-{lie}"))
        assert (lie, refused.status_code, code_of(refused)) == (lie, 409, "superseded")
    assert is_known(plane, "third")
    assert events(plane, "node.agent_superseded") == 3, "one for each session that was, and one for all lies"
    assert renew(plane, renewal("n1", 3, "fourth", presented="third")).json()["number"] == 4


def test_a_copy_that_was_recorded_is_turned_out_by_the_dispatcher_when_the_api_did_not(
    plane: RunningPlane,
) -> None:
    """The API is killed after the fact: it is played here by its command alone."""
    renew(plane, renewal("n1", 1, "of-the-original", password="pw-2"))
    asyncio.run(record(plane.settings, Superseded(NodeId("n1"), 1, 2)))
    assert events(plane, "node.agent_superseded") == 1
    until(lambda: not is_let_in(plane, QUEUE_PASSWORD), "the copy's password is past")
    assert is_let_in(plane, "pw-2")


def test_of_many_copies_that_renew_at_once_one_goes_on(plane: RunningPlane) -> None:
    answers: list[int] = []
    gate = threading.Barrier(8)

    def copy(number: int) -> None:
        gate.wait(10)
        answers.append(renew(plane, renewal("n1", 1, f"copy-{number}")).status_code)

    copies = [threading.Thread(target=copy, args=(number,)) for number in range(8)]
    for thread in copies:
        thread.start()
    for thread in copies:
        thread.join()
    assert sorted(answers) == [200, *[409] * 7]
    assert sum(is_known(plane, f"copy-{number}") for number in range(8)) == 1
    assert events(plane, "node.agent_superseded") == 1


def test_a_session_that_we_forgot_is_gone_on_from(plane: RunningPlane) -> None:
    plane.rows("update work.node_session set number = 1, expires_at = clock_timestamp() returning 1")
    assert renew(plane, renewal("n1", 40, "after-a-restore")).json()["number"] == 41
    plane.rows("delete from work.node_session returning 1")
    assert renew(plane, renewal("n1", 41, "after-another")).json()["number"] == 42
    assert is_known(plane, "after-another")
    assert events(plane, "node.agent_superseded") == 0


@pytest.mark.parametrize("seconds", [1, 3600])
def test_a_stolen_credential_is_worth_nothing_after_its_session(plane: RunningPlane, seconds: int) -> None:
    plane.rows(
        "update work.node_session set expires_at = clock_timestamp() - %(by)s * interval '1 second' returning 1",
        by=seconds,
    )
    refused = desired(as_node(plane, "n1"))
    assert (refused.status_code, code_of(refused)) == (401, "session_expired")
    until(lambda: not is_let_in(plane, QUEUE_PASSWORD), "the queue's user is gone")
    assert renew(plane, renewal("n1", 1, "second", password="pw-2")).is_success
    assert is_known(plane, "second")
    assert is_let_in(plane, "pw-2")


def test_connections_of_a_session_that_ended_end_with_it(plane: RunningPlane) -> None:
    connected = queue(plane, QUEUE_PASSWORD)
    assert connected.ping()
    plane.rows("update work.node_session set expires_at = clock_timestamp() returning 1")

    def is_cut_off() -> bool:
        try:
            return not connected.ping()
        except (redis.AuthenticationError, redis.ConnectionError):
            return True

    until(is_cut_off, "the connection is ended")


def test_an_empty_redis_is_told_both_passwords(plane: RunningPlane) -> None:
    renew(plane, renewal("n1", 1, "second", password="pw-2"))
    with redis.Redis.from_url(plane.redis.url) as admin:
        admin.acl_deluser("node-n1")
        admin.flushall()
    until(lambda: is_let_in(plane, QUEUE_PASSWORD) and is_let_in(plane, "pw-2"), "both are let in again")


@pytest.mark.parametrize(
    "asked",
    [
        renewal("n1", 1, "x", key=OTHER_KEY).model_dump(),
        {**renewal("n1", 1, "x").model_dump(), "node_id": "n2"},
        {"node_id": "n1", "proof": renewal("n2", 1, "x", key=key_of("n1")).proof},
        {"node_id": "n1", "proof": "no.proof.at-all"},
        {"node_id": "n1", "proof": ""},
        {"node_id": "n1", "proof": enrolment("n1", "a-token-of-sixteen").proof},
        {"node_id": "n1", "proof": key_of("n1").sign("order+jws", b"{}")},
        {"node_id": "n1", "proof": key_of("n1").sign("session+jws", b"[]")},
    ],
    ids=["stranger", "no-key", "anothers", "none", "empty", "enrolment", "order", "list"],
)
def test_a_renewal_without_a_good_proof_is_refused_and_nothing_is_recorded(
    plane: RunningPlane, asked: dict[str, str]
) -> None:
    expect(plane, "n2")
    answer = httpx.post(f"{plane.url}/v1/agent/sessions", json=asked, timeout=20)
    assert answer.status_code == 401
    assert code_of(answer) in {"wrong_proof", "unknown_node"}
    assert is_known(plane, CREDENTIAL)
    assert events(plane, "node.agent_superseded") == 0


def test_an_enrolment_needs_the_key_that_it_shows(running_plane: RunningPlane) -> None:
    token = expect(running_plane, "n1")
    good = enrolment("n1", token)
    claims = EnrolmentClaims(
        node_id="n1",
        token_sha256=digest("another-token-than-shown"),
        credential_sha256=digest("c"),
        queue_password_sha256=digest("q"),
        agent_version="1",
    )
    other_token = key_of("n1").sign("session+jws", claims.model_dump_json().encode())
    for wrong in (
        {"public_key": OTHER_KEY.public},
        {"public_key": "no key"},
        {"proof": OTHER_KEY.sign("session+jws", b"{}")},
        {"proof": other_token},
        {"proof": renewal("n1", 1, "x").proof},
    ):
        body = good.model_copy(update=wrong).model_dump()
        answer = httpx.post(f"{running_plane.url}/v1/agent/enroll", json=body, timeout=20)
        assert (answer.status_code, code_of(answer)) == (401, "wrong_proof")
    assert events(running_plane, "node.identified") == 0
    assert enrol(running_plane, "n1", token).is_success


def test_a_revoked_node_is_out_at_once_everywhere(plane: RunningPlane) -> None:
    connected = queue(plane, QUEUE_PASSWORD)
    assert connected.ping()
    answer = plane.client().post("/nodes/n1/revoke", json={"why": "the host was sold"})
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["revoked"]) == ("revoked", "the host was sold")
    assert not is_known(plane, CREDENTIAL)
    with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
        connected.ping()
    assert (
        plane.client().post("/nodes/n1/revoke", json={"why": "again"}).json()["revoked"]
        == "the host was sold"
    )
    assert events(plane, "node.revoked") == 1
    assert plane.client().get("/nodes/n1?at=position:3").json()["state"] == "enrolled"


@pytest.mark.parametrize("key", [None, OTHER_KEY], ids=["its own key", "another key"])
def test_whoever_knows_a_revoked_nodes_name_is_told_nothing_of_it(
    plane: RunningPlane, key: Signer | None
) -> None:
    plane.client().post("/nodes/n1/revoke", json={"why": "the host was sold"})
    refused = renew(plane, renewal("n1", 1, "second", key=key))
    stranger = renew(plane, renewal("nobody", 1, "second"))
    assert (refused.status_code, refused.json()["reasons"]) == (401, stranger.json()["reasons"])
    assert code_of(refused) == "unknown_node"


def test_a_revocation_that_the_api_did_not_finish_is_finished_by_the_dispatcher(plane: RunningPlane) -> None:
    plane.client().post("/nodes/n1/revoke", json={"why": "the host was sold"})
    with redis.Redis.from_url(plane.redis.url) as admin:
        admin.acl_setuser("node-n1", enabled=True, passwords=[f"+{QUEUE_PASSWORD}"], commands=["+ping"])
    plane.rows("update work.node_session set queue_number = number returning 1")
    until(lambda: not is_let_in(plane, QUEUE_PASSWORD), "the user is gone")


def test_a_revoked_node_gets_no_slices_and_a_new_enrolment_brings_it_back(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1", slots=2)
    assert allocate(running_plane).status_code == 202
    running_plane.client().post("/nodes/n1/revoke", json={"why": "to see"})
    assert allocate(running_plane).status_code == 409
    assert [*blocked(running_plane).values()] == ["revoked"] * 3
    token = running_plane.client().post("/nodes/n1/enrolment").json()["enrolment_token"]
    assert allocate(running_plane).status_code == 409
    again = enrol(running_plane, "n1", token, "after-it", OTHER_KEY)
    assert again.json()["number"] == 2
    assert as_node(running_plane, "n1", "after-it").post("/heartbeat", json=BEAT).is_success
    node = running_plane.client().get("/nodes/n1").json()
    assert (node["revoked"], node["state"], node["key_thumbprint"]) == (None, "enrolled", OTHER_KEY.kid)
    assert allocate(running_plane).status_code == 202


def test_a_token_opens_nothing_after_the_revocation(running_plane: RunningPlane) -> None:
    token = expect(running_plane, "n1")
    running_plane.client().post("/nodes/n1/revoke", json={"why": "it was a mistake"})
    refused = enrol(running_plane, "n1", token)
    assert (refused.status_code, code_of(refused)) == (401, "revoked")


@pytest.mark.parametrize("body", [{}, {"why": ""}, {"why": "x" * 501}, {"why": "\0"}, {"why": 1}])
def test_a_revocation_says_why(plane: RunningPlane, body: dict[str, object]) -> None:
    assert plane.client().post("/nodes/n1/revoke", json=body).status_code == 422
    assert plane.client().post("/nodes/nobody/revoke", json={"why": "x"}).status_code == 404
    assert is_known(plane, CREDENTIAL)


def test_a_new_enrolment_turns_out_whoever_had_the_node_before(plane: RunningPlane) -> None:
    connected = queue(plane, QUEUE_PASSWORD)
    assert connected.ping()
    [before] = connections(plane)
    token = plane.client().post("/nodes/n1/enrolment").json()["enrolment_token"]
    assert is_known(plane, CREDENTIAL), "what it has goes on until then"
    assert enrol(plane, "n1", token, "of-the-new-disk", OTHER_KEY).is_success
    assert not is_known(plane, CREDENTIAL)
    assert before not in connections(plane)
    assert code_of(renew(plane, renewal("n1", 1, "x"))) == "wrong_proof"


@pytest.mark.parametrize("code", ["forged", "unknown_key", "expired"])
def test_the_refusal_of_a_bad_copy_is_recorded_once_and_ends_no_order(
    running_plane: RunningPlane, code: str
) -> None:
    node = admit(running_plane, "n1")
    assert allocate(running_plane).status_code == 202
    query = "select order_id::text from work.task where state in ('due', 'sent')"
    until(lambda: bool(running_plane.rows(query)), "the order is on its way")
    [[order]] = running_plane.rows(query)
    spool, stranger = str(uuid4()), str(uuid4())
    reason = {"code": code, "message": "so I say"}
    bodies = [
        {"kind": "order.refused", "order_id": each, "reason": reason}
        for each in (order, order, stranger, stranger, order)
    ]
    assert node.post("/reports", json=batch(spool, *enumerate(bodies, 1))).is_success
    assert running_plane.rows(query) == [(order,)]
    assert (events(running_plane, "order.refused"), events(running_plane, "order.message_refused")) == (1, 1)
    told = running_plane.rows(
        "select data::jsonb ->> 'slot_id' from ledger.event where type = 'order.refused'"
    )
    assert told == [("n1/0",)]


def test_what_a_node_should_hold_is_told_signed(running_plane: RunningPlane) -> None:
    node = admit(running_plane, "n1")
    allocate(running_plane)
    until(lambda: bool(wanted(node)), "the order is derived")
    [text] = wanted(node)
    assert len(text.split(".")) == 3
