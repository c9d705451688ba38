"""Callers of the tests of access: API keys of every role, of two projects, revoked and expired, and sessions."""

from dataclasses import dataclass
from typing import Any

import httpx

from tests.servers.plane import RunningPlane


@dataclass(frozen=True)
class Key:
    """An API key that a test has issued, or a session that it has started, and its secret."""

    id: str
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


def issue(plane: RunningPlane, name: str, role: str = "caller", **limits: Any) -> Key:
    """Issue an API key as an admin does. `limits` are further fields of the request."""
    with plane.client() as admin:
        answer = admin.post("/keys", json={"name": name, "role": role, **limits})
    assert answer.status_code == 201, answer.text
    return Key(answer.json()["id"], answer.json()["key"])


def create_project(plane: RunningPlane, name: str) -> None:
    with plane.client() as admin:
        answer = admin.post("/projects", json={"id": name})
    assert answer.status_code == 201, answer.text


def create_account(plane: RunningPlane, name: str, role: str = "caller", **limits: Any) -> str:
    """Create a service account as an admin, and return its id. `limits` are its projects, scopes and other fields."""
    with plane.client() as admin:
        answer = admin.post("/service-accounts", json={"id": name, "role": role, **limits})
    assert answer.status_code == 201, answer.text
    return name


def key_of_account(plane: RunningPlane, account: str, **further: Any) -> Key:
    """Issue an API key for a service account."""
    with plane.client() as admin:
        answer = admin.post("/keys", json={"name": "job", "service_account": account, **further})
    assert answer.status_code == 201, answer.text
    return Key(answer.json()["id"], answer.json()["key"])


def session_of(plane: RunningPlane, secret: str, **body: Any) -> Key:
    """Start a session with an API key or a token."""
    with plane.client(Authorization=f"Bearer {secret}") as caller:
        answer = caller.post("/sessions", json=body)
    assert answer.status_code == 201, answer.text
    return Key(answer.json()["id"], answer.json()["secret"])


def client_of(plane: RunningPlane, key: Key) -> httpx.Client:
    return plane.client(**key.headers)


def expire(plane: RunningPlane, key: Key) -> None:
    """Move the expiry of an API key into the past, as if its lifetime had passed."""
    plane.rows("update read.api_key set expires_at = now() where key_id = %(id)s returning 1", id=key.id)
