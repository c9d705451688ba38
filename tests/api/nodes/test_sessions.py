"""Node sessions: renewal with the node's key, sequence numbers, refusal of a copy of a node, expiry, revocation."""

import asyncio
import threading
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis

from control_plane.commands.identity import record_superseded
from control_plane.identity.sessions import Superseded
from control_plane.origin import Origin
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
    blocked_by,
    desired_orders,
    digest,
    enrol,
    enrolment,
    key_of,
    register_node,
    renew,
    renewal,
    request_desired_state,
)
from tests.servers.plane import TLS_CONTEXT, RunningPlane
from tests.servers.redis import connect_as_node
from tests.waiting import until

OTHER_KEY = Signer.of_pem(new_private_key())


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    """A control plane with node `n1` enrolled, in its first session."""
    assert enrol(emptied_plane, "n1", register_node(emptied_plane, "n1")).json()["number"] == 1
    return emptied_plane


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["reasons"][0]["code"])


def api_accepts(plane: RunningPlane, credential: str) -> bool:
    return as_node(plane, "n1", credential).post("/heartbeat", json=BEAT).is_success


def queue(plane: RunningPlane, password: str, name: str = "n1") -> redis.Redis:
    return connect_as_node(plane.redis.port, name, password)


def queue_accepts(plane: RunningPlane, password: str) -> bool:
    try:
        with queue(plane, password) as client:
            return bool(client.ping())
    except (redis.AuthenticationError, redis.ConnectionError):
        return False


def queue_refuses(plane: RunningPlane, password: str) -> bool:
    return not queue_accepts(plane, password)


def connections(plane: RunningPlane) -> list[str]:
    """Return the Redis client ids of the node's connections to its queue."""
    with redis.Redis.from_url(plane.redis.url) as admin:
        return [str(each["id"]) for each in admin.client_list() if each["user"] == "node-n1"]


def events(plane: RunningPlane, type_: str) -> int:
    count: int = plane.rows("select count(*) from ledger.event where type = %(type)s", type=type_)[0][0]
    return count


def node_view(plane: RunningPlane) -> dict[str, Any]:
    found: dict[str, Any] = plane.client().get("/nodes/n1").json()
    return found


async def record(settings: Settings, superseded: Superseded) -> None:
    origin = Origin(actor="node:n1", reason="renewal", correlation_id=uuid4())
    async with control_plane_on(settings) as made:
        await made.handle(record_superseded(superseded, origin))


def test_renewal_of_a_node_session_grants_a_new_session_and_invalidates_the_old_credential(
    plane: RunningPlane,
) -> None:
    answer = renew(plane, renewal("n1", 1, "second", password="pw-2"))
    assert answer.status_code == 200
    granted = answer.json()
    assert (granted["number"], granted["lifetime_seconds"]) == (2, 900.0)
    assert api_accepts(plane, "second")
    assert not api_accepts(plane, CREDENTIAL)
    assert events(plane, "node.agent_superseded") == 0


def test_session_renewal_repeated_with_the_same_credential_returns_the_same_session(
    plane: RunningPlane,
) -> None:
    request = renewal("n1", 1, "second")
    assert [renew(plane, request).json()["number"] for _ in range(3)] == [2, 2, 2]
    assert api_accepts(plane, "second")


def test_queue_accepts_the_passwords_of_the_two_newest_sessions(
    plane: RunningPlane,
) -> None:
    renew(plane, renewal("n1", 1, "second", password="pw-2"))
    assert [queue_accepts(plane, password) for password in (QUEUE_PASSWORD, "pw-2")] == [True, True]
    renew(plane, renewal("n1", 2, "third", presented="second", password="pw-3"))
    assert [queue_accepts(plane, password) for password in (QUEUE_PASSWORD, "pw-2", "pw-3")] == [
        False,
        True,
        True,
    ]


def test_session_renewal_closes_queue_connections_and_the_next_renewal_invalidates_their_password(
    plane: RunningPlane,
) -> None:
    copied_connection = queue(plane, QUEUE_PASSWORD)
    assert copied_connection.ping()
    [before] = connections(plane)
    renew(plane, renewal("n1", 1, "second", password="pw-2"))
    assert before not in connections(plane)
    assert copied_connection.ping(), "the client reconnects with the password of the previous session"
    renew(plane, renewal("n1", 2, "third", presented="second", password="pw-3"))
    with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
        copied_connection.ping()


def test_second_renewal_of_a_session_with_another_credential_is_refused_recorded_once_and_shown_in_the_node_view(
    plane: RunningPlane,
) -> None:
    assert renew(plane, renewal("n1", 1, "of-the-original")).is_success
    for attempt in range(4):
        refused = renew(plane, renewal("n1", 1, f"of-the-copy-{attempt}"))
        assert (refused.status_code, code_of(refused)) == (409, "superseded")
    assert events(plane, "node.agent_superseded") == 1
    assert plane.rows("select about, code, times from work.refusal") == [("session:1", "superseded", 4)]
    node = node_view(plane)
    assert node["superseded_session"] == 1
    assert node["superseded_at"] is not None
    assert api_accepts(plane, "of-the-original")
    assert not api_accepts(plane, "of-the-copy-0")


def test_copy_of_a_node_that_renews_a_superseded_session_loses_its_queue_connections_and_password(
    plane: RunningPlane,
) -> None:
    copied_connection = queue(plane, QUEUE_PASSWORD)
    assert copied_connection.ping()
    renew(plane, renewal("n1", 1, "of-the-original", password="pw-2"))
    assert renew(plane, renewal("n1", 1, "of-the-copy")).status_code == 409
    with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
        copied_connection.ping()
    assert [queue_accepts(plane, password) for password in (QUEUE_PASSWORD, "pw-2")] == [False, True]


def test_session_renewal_with_a_false_session_number_is_refused_without_revealing_the_current_number(
    plane: RunningPlane,
) -> None:
    assert renew(plane, renewal("n1", 1, "second")).is_success
    assert renew(plane, renewal("n1", 2, "third", presented="second")).is_success
    first = renew(plane, renewal("n1", 1, "of-the-copy"))
    assert first.status_code == 409
    assert "3" not in first.json()["reasons"][0]["message"].replace("n1", "")
    for claimed_number in (2, 3, 4, 5, 900):
        refused = renew(plane, renewal("n1", claimed_number, f"of-the-copy-{claimed_number}"))
        assert (claimed_number, refused.status_code, code_of(refused)) == (claimed_number, 409, "superseded")
    assert api_accepts(plane, "third")
    assert events(plane, "node.agent_superseded") == 3, (
        "one for each earlier session, and one for all false numbers"
    )
    assert renew(plane, renewal("n1", 3, "fourth", presented="third")).json()["number"] == 4


def test_dispatcher_removes_the_queue_access_of_a_copied_node_if_the_api_was_killed_before_removing_it(
    plane: RunningPlane,
) -> None:
    """The API was killed before it changed Redis: the test runs only the command that records the copy as an event."""
    renew(plane, renewal("n1", 1, "of-the-original", password="pw-2"))
    asyncio.run(record(plane.settings, Superseded(NodeId("n1"), 1, 2)))
    assert events(plane, "node.agent_superseded") == 1
    until(lambda: not queue_accepts(plane, QUEUE_PASSWORD), "the password of the copy is invalid")
    assert queue_accepts(plane, "pw-2")


def test_one_of_many_concurrent_renewals_of_a_session_succeeds(plane: RunningPlane) -> None:
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
    assert sum(api_accepts(plane, f"copy-{number}") for number in range(8)) == 1
    assert events(plane, "node.agent_superseded") == 1


def test_renewal_of_a_node_session_that_a_database_restore_lost_is_granted(plane: RunningPlane) -> None:
    plane.rows("update work.node_session set number = 1, expires_at = clock_timestamp() returning 1")
    assert renew(plane, renewal("n1", 40, "after-a-restore")).json()["number"] == 41
    plane.rows("delete from work.node_session returning 1")
    assert renew(plane, renewal("n1", 41, "after-another")).json()["number"] == 42
    assert api_accepts(plane, "after-another")
    assert events(plane, "node.agent_superseded") == 0


def test_credential_of_an_expired_session_is_refused_and_the_node_can_renew(plane: RunningPlane) -> None:
    credential, password = CREDENTIAL, QUEUE_PASSWORD
    for session, seconds in enumerate((1, 3600), 1):
        plane.rows(
            "update work.node_session set expires_at = clock_timestamp() - %(by)s * interval '1 second' returning 1",
            by=seconds,
        )
        refused = request_desired_state(as_node(plane, "n1", credential))
        assert (refused.status_code, code_of(refused)) == (401, "session_expired")
        until(partial(queue_refuses, plane, password), "the queue user is deleted")
        presented, credential, password = credential, f"credential-{session}", f"pw-{session}"
        again = renewal("n1", session, credential, presented=presented, password=password)
        assert renew(plane, again).is_success
        assert api_accepts(plane, credential)
        assert queue_accepts(plane, password)


def test_queue_connections_of_an_expired_session_are_closed(plane: RunningPlane) -> None:
    connected = queue(plane, QUEUE_PASSWORD)
    assert connected.ping()
    plane.rows("update work.node_session set expires_at = clock_timestamp() returning 1")

    def is_disconnected() -> bool:
        try:
            return not connected.ping()
        except (redis.AuthenticationError, redis.ConnectionError):
            return True

    until(is_disconnected, "the connection is closed")


def test_redis_accepts_both_current_queue_passwords_of_a_node_again_after_it_was_flushed(
    plane: RunningPlane,
) -> None:
    renew(plane, renewal("n1", 1, "second", password="pw-2"))
    with redis.Redis.from_url(plane.redis.url) as admin:
        admin.acl_deluser("node-n1")
        admin.flushall()
    until(
        lambda: queue_accepts(plane, QUEUE_PASSWORD) and queue_accepts(plane, "pw-2"),
        "both passwords are accepted again",
    )


def test_session_renewal_with_an_invalid_proof_of_the_node_key_is_refused_without_events(
    plane: RunningPlane,
) -> None:
    register_node(plane, "n2")
    invalid = {
        "other key": renewal("n1", 1, "x", key=OTHER_KEY).model_dump(),
        "node without key": {**renewal("n1", 1, "x").model_dump(), "node_id": "n2"},
        "claims of another node": {"node_id": "n1", "proof": renewal("n2", 1, "x", key=key_of("n1")).proof},
        "malformed proof": {"node_id": "n1", "proof": "no.proof.at-all"},
        "empty proof": {"node_id": "n1", "proof": ""},
        "enrolment proof": {"node_id": "n1", "proof": enrolment("n1", "a-token-of-sixteen").proof},
        "signed order": {"node_id": "n1", "proof": key_of("n1").sign("order+jws", b"{}")},
        "claims that are no object": {"node_id": "n1", "proof": key_of("n1").sign("session+jws", b"[]")},
    }
    with httpx.Client(base_url=plane.url, timeout=20, verify=TLS_CONTEXT) as client:
        for name, body in invalid.items():
            answer = client.post("/v1/agent/sessions", json=body)
            assert (name, answer.status_code) == (name, 401)
            assert code_of(answer) in {"wrong_proof", "unknown_node"}, name
            assert api_accepts(plane, CREDENTIAL), name
    assert events(plane, "node.agent_superseded") == 0


def test_enrolment_with_a_proof_that_does_not_match_its_key_is_refused(emptied_plane: RunningPlane) -> None:
    token = register_node(emptied_plane, "n1")
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
        answer = httpx.post(f"{emptied_plane.url}/v1/agent/enroll", json=body, timeout=20, verify=TLS_CONTEXT)
        assert (answer.status_code, code_of(answer)) == (401, "wrong_proof")
    assert events(emptied_plane, "node.enrolled") == 0
    assert enrol(emptied_plane, "n1", token).is_success


def test_revoked_node_loses_api_and_queue_access_at_once(plane: RunningPlane) -> None:
    connected = queue(plane, QUEUE_PASSWORD)
    assert connected.ping()
    answer = plane.client().post("/nodes/n1/revoke", json={"reason": "the host was sold"})
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["revoked"]) == ("revoked", "the host was sold")
    assert not api_accepts(plane, CREDENTIAL)
    with pytest.raises((redis.AuthenticationError, redis.ConnectionError)):
        connected.ping()
    assert (
        plane.client().post("/nodes/n1/revoke", json={"reason": "again"}).json()["revoked"]
        == "the host was sold"
    )
    assert events(plane, "node.revoked") == 1
    [(enrolled,)] = plane.rows("select max(position) from ledger.event where type = 'node.enrolled'")
    assert plane.client().get(f"/nodes/n1?at=position:{enrolled}").json()["state"] == "enrolled"


def test_session_renewal_for_a_revoked_node_is_refused_with_the_same_error_as_for_an_unknown_node(
    plane: RunningPlane,
) -> None:
    plane.client().post("/nodes/n1/revoke", json={"reason": "the host was sold"})
    unknown = renew(plane, renewal("not-registered", 1, "second"))
    for key in (None, OTHER_KEY):
        refused = renew(plane, renewal("n1", 1, "second", key=key))
        assert (refused.status_code, refused.json()["reasons"]) == (401, unknown.json()["reasons"])
        assert code_of(refused) == "unknown_node"


def test_dispatcher_completes_the_revocation_of_a_node_if_the_api_was_killed_before_completing_it(
    plane: RunningPlane,
) -> None:
    plane.client().post("/nodes/n1/revoke", json={"reason": "the host was sold"})
    with redis.Redis.from_url(plane.redis.url) as admin:
        admin.acl_setuser("node-n1", enabled=True, passwords=[f"+{QUEUE_PASSWORD}"], commands=["+ping"])
    plane.rows("update work.node_session set queue_number = number returning 1")
    until(lambda: not queue_accepts(plane, QUEUE_PASSWORD), "the queue user is deleted")


def test_revoked_node_receives_no_allocation_until_it_enrols_again(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=2)
    assert allocate(emptied_plane).status_code == 202
    emptied_plane.client().post("/nodes/n1/revoke", json={"reason": "a test"})
    assert allocate(emptied_plane).status_code == 409
    assert [*blocked_by(emptied_plane).values()] == ["revoked"] * 3
    token = emptied_plane.client().post("/nodes/n1/enrolment").json()["enrolment_token"]
    assert allocate(emptied_plane).status_code == 409
    again = enrol(emptied_plane, "n1", token, "after-it", OTHER_KEY)
    assert again.json()["number"] == 2
    assert as_node(emptied_plane, "n1", "after-it").post("/heartbeat", json=BEAT).is_success
    node = emptied_plane.client().get("/nodes/n1").json()
    assert (node["revoked"], node["state"], node["key_thumbprint"]) == (None, "enrolled", OTHER_KEY.kid)
    assert allocate(emptied_plane).status_code == 202


def test_enrolment_token_of_a_revoked_node_is_refused(emptied_plane: RunningPlane) -> None:
    token = register_node(emptied_plane, "n1")
    emptied_plane.client().post("/nodes/n1/revoke", json={"reason": "it was a mistake"})
    refused = enrol(emptied_plane, "n1", token)
    assert (refused.status_code, code_of(refused)) == (401, "revoked")


def test_revocation_without_a_valid_reason_is_refused(plane: RunningPlane) -> None:
    invalid: list[dict[str, object]] = [
        {},
        {"reason": ""},
        {"reason": "x" * 501},
        {"reason": "\0"},
        {"reason": 1},
    ]
    with plane.client() as client:
        for body in invalid:
            assert (body, client.post("/nodes/n1/revoke", json=body).status_code) == (body, 422)
        assert client.post("/nodes/not-registered/revoke", json={"reason": "x"}).status_code == 404
    assert api_accepts(plane, CREDENTIAL)


def test_new_enrolment_invalidates_the_earlier_session_and_key_of_the_node(plane: RunningPlane) -> None:
    connected = queue(plane, QUEUE_PASSWORD)
    assert connected.ping()
    [before] = connections(plane)
    token = plane.client().post("/nodes/n1/enrolment").json()["enrolment_token"]
    assert api_accepts(plane, CREDENTIAL), "the session stays valid until the new enrolment"
    assert enrol(plane, "n1", token, "of-the-new-disk", OTHER_KEY).is_success
    assert not api_accepts(plane, CREDENTIAL)
    assert before not in connections(plane)
    assert code_of(renew(plane, renewal("n1", 1, "x"))) == "wrong_proof"


@pytest.mark.parametrize("code", ["forged", "unknown_key", "expired"])
def test_refusal_of_an_order_due_to_an_invalid_queue_message_is_recorded_once_and_does_not_end_the_order(
    emptied_plane: RunningPlane, code: str
) -> None:
    node = admit(emptied_plane, "n1")
    assert allocate(emptied_plane).status_code == 202
    query = "select order_id::text from work.task where state in ('due', 'sent')"
    until(lambda: bool(emptied_plane.rows(query)), "there is an order")
    [[order]] = emptied_plane.rows(query)
    spool, unknown = str(uuid4()), str(uuid4())
    reason = {"code": code, "message": "a false reason"}
    bodies = [
        {"kind": "order.refused", "order_id": each, "reason": reason}
        for each in (order, order, unknown, unknown, order)
    ]
    assert node.post("/reports", json=batch(spool, *enumerate(bodies, 1))).is_success
    assert emptied_plane.rows(query) == [(order,)]
    assert (events(emptied_plane, "order.refused"), events(emptied_plane, "order.message_refused")) == (1, 1)
    recorded = emptied_plane.rows(
        "select data::jsonb ->> 'slot_id' from ledger.event where type = 'order.refused'"
    )
    assert recorded == [("n1/0",)]


def test_desired_state_contains_signed_orders(emptied_plane: RunningPlane) -> None:
    node = admit(emptied_plane, "n1")
    allocate(emptied_plane)
    until(lambda: bool(desired_orders(node)), "there is an order")
    [text] = desired_orders(node)
    assert len(text.split(".")) == 3
