"""Requests with an Idempotency-Key: one effect, one answer, for the same caller only; secrets are stored encrypted."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from control_plane.identity.sealed_answers import CannotOpen, open_answer, seal_answer
from tests.api.access.principals import client_of, create_project, issue
from tests.api.api_process import api_process
from tests.api.node import admit, allocate
from tests.servers.plane import RunningPlane
from tests.torture import count

REPLAYED: Final = "idempotent-replayed"
RETRIED: Final = {httpx.codes.CONFLICT, httpx.codes.SERVICE_UNAVAILABLE}
Body = Mapping[str, Any]


def keyed(key: str | None = None) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid4())}


def everything_stored(plane: RunningPlane) -> str:
    """Return the text of every row of every table of the database."""
    tables = plane.rows(
        "select format('%I.%I', table_schema, table_name) from information_schema.tables"
        " where table_schema in ('ledger', 'read', 'work')"
    )
    assert len(tables) > 20
    return "".join(
        str(row) for (table,) in tables for row in plane.rows(f"select stored::text from {table} stored")
    )


@pytest.mark.parametrize(
    ("path", "body", "secret"),
    [
        ("/nodes", {"id": "twice"}, "enrolment_token"),
        ("/nodes/n1/enrolment", None, "enrolment_token"),
        ("/keys", {"name": "twice", "role": "auditor"}, "key"),
        ("/keys/{key}/rotate", {}, "key"),
    ],
)
def test_repeated_request_for_a_secret_returns_the_same_secret_and_the_database_does_not_have_it(
    shared_plane: RunningPlane, path: str, body: Body | None, secret: str
) -> None:
    with shared_plane.client() as admin:
        if "/n1/" in path:
            admin.post("/nodes", json={"id": "n1"})
        path, headers = path.format(key=issue(shared_plane, "rotated", "auditor").id), keyed()
        first = admin.post(path, json=body, headers=headers)
        again = admin.post(path, json=body, headers=headers)
        other = admin.post(path, json=body, headers=keyed())
    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.headers.get(REPLAYED), again.headers.get(REPLAYED)) == (None, "true")
    assert first.content == again.content
    assert other.status_code == 409 or other.json()[secret] != first.json()[secret]
    assert first.json()[secret] not in everything_stored(shared_plane)


def test_idempotency_key_of_one_principal_never_returns_the_answer_to_another_principal(
    shared_plane: RunningPlane,
) -> None:
    headers, body = keyed(), {"name": "mine", "role": "auditor"}
    callers = [client_of(shared_plane, issue(shared_plane, name, "admin")) for name in ("first", "second")]
    answers = [caller.post("/keys", json=body, headers=headers) for caller in callers]
    assert [each.headers.get(REPLAYED) for each in answers] == [None, None]
    assert answers[0].json()["id"] != answers[1].json()["id"]
    assert answers[0].json()["key"] != answers[1].json()["key"]
    for caller, answer in zip(callers, answers, strict=True):
        assert caller.post("/keys", json=body, headers=headers).content == answer.content
        caller.close()


def test_stored_secret_is_refused_to_another_credential_of_the_same_principal(
    shared_plane: RunningPlane,
) -> None:
    key, headers, body = issue(shared_plane, "moved", "admin"), keyed(), {"name": "x", "role": "auditor"}
    with client_of(shared_plane, key) as caller:
        assert caller.post("/keys", json=body, headers=headers).status_code == 201
    shared_plane.rows(
        "update read.api_key set key_sha256 = %(sha)s where key_id = %(id)s returning 1",
        sha=sha256(b"another secret").hexdigest(),
        id=key.id,
    )
    with shared_plane.client(Authorization="Bearer another secret") as caller:
        answer = caller.post("/keys", json=body, headers=headers)
    assert answer.status_code == 409
    assert [each["code"] for each in answer.json()["reasons"]] == ["answer_sealed"]


def test_idempotency_key_used_with_another_body_is_refused(shared_plane: RunningPlane) -> None:
    headers = keyed()
    with shared_plane.client() as admin:
        assert admin.post("/nodes", json={"id": "one"}, headers=headers).is_success
        answer = admin.post("/nodes", json={"id": "two"}, headers=headers)
    assert answer.status_code == 409
    assert [each["code"] for each in answer.json()["reasons"]] == ["idempotency_key_reused"]


def test_refused_request_does_not_use_up_its_idempotency_key(shared_plane: RunningPlane) -> None:
    headers, body = keyed(), {"name": "later", "role": "caller", "projects": ["later"]}
    with shared_plane.client() as admin:
        assert admin.post("/keys", json=body, headers=headers).status_code == 404
        create_project(shared_plane, "later")
        answer = admin.post("/keys", json=body, headers=headers)
    assert (answer.status_code, answer.headers.get(REPLAYED)) == (201, None)


def test_replay_of_a_change_returns_the_present_state_and_of_a_creation_the_stored_answer(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    with running_plane.client() as admin:
        created_with, released_with = keyed(), keyed()
        body = {"sku": "lab.small", "ssh_authorized_keys": ["ssh-ed25519 " + KEY_TEXT]}
        created = admin.post("/allocations", json=body, headers=created_with)
        path = f"/allocations/{created.json()['id']}"
        stopped = admin.delete(path, headers=released_with)
        assert admin.post("/allocations", json=body, headers=created_with).content == created.content
        replayed = admin.delete(path, headers=released_with)
        present = admin.get(path)
    assert stopped.json()["state"] == "releasing"
    assert replayed.headers[REPLAYED] == "true"
    assert replayed.json() == present.json()
    assert allocate(running_plane).status_code == 409


KEY_TEXT: Final = "AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV"


def test_duplicates_with_one_idempotency_key_have_one_effect_per_principal_while_api_processes_are_killed(
    running_plane: RunningPlane, tmp_path: Path
) -> None:
    twins = count(100)
    callers = [issue(running_plane, name, "admin").headers for name in ("first", "second")]
    with api_process(running_plane, tmp_path / "api.log") as killed:
        for turn in range(count(20)):
            name, key, together = f"twin{turn}", keyed(), threading.Barrier(2 * twins + 1)
            with ThreadPoolExecutor(2 * twins) as pool:
                answers = [
                    [
                        pool.submit(persistently, plane, name, {**caller, **key}, together)
                        for number in range(twins)
                        for plane in [(killed.plane, running_plane)[number % 2]]
                    ]
                    for caller in callers
                ]
                together.wait()
                killed.kill()
                killed.start()
            [first], [second] = ({each.result().content for each in one} for one in answers)
            assert first != second
            assert running_plane.rows(
                "select count(*) from read.api_key where name = %(name)s", name=name
            ) == [(2,)]


def persistently(
    plane: RunningPlane, name: str, headers: dict[str, str], together: threading.Barrier
) -> httpx.Response:
    """Repeat a request until it is answered with success, as a client that retries does."""
    with plane.client(**headers) as client:
        together.wait()
        while True:
            try:
                answer = client.post("/keys", json={"name": name, "role": "auditor"})
            except httpx.TransportError:
                continue
            if answer.status_code not in RETRIED:
                assert answer.status_code == 201, answer.text
                return answer


def test_stored_response_is_decrypted_only_with_the_secret_and_request_with_which_it_was_encrypted() -> None:
    sealed = seal_answer("the answer", "secret", "request")
    assert open_answer(sealed, "secret", "request") == "the answer"
    assert "the answer" not in sealed
    assert seal_answer("the answer", "secret", "request") != sealed
    for changed in (
        (sealed, "Secret", "request"),
        (sealed, "secret", "Request"),
        (sealed[:-8], "secret", "request"),
        ("sealed1.", "secret", "request"),
        ("not sealed", "secret", "request"),
    ):
        with pytest.raises(CannotOpen):
            open_answer(*changed)
