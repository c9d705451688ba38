"""What `up` asks of the control plane, over its public API like any other caller."""

import ssl
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx


class ApiRefused(Exception):
    """The API said no; the message has every reason."""


@dataclass(frozen=True, slots=True)
class Api:
    url: str
    key: str = field(repr=False)
    trusted: ssl.SSLContext

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def items(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(path)["items"]
        return found

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", path, body)

    def put(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("PUT", path, body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Idempotency-Key": uuid.uuid4().hex,
        }
        answer = httpx.request(
            method,
            f"{self.url}/v1{path}",
            json=body,
            headers=headers,
            timeout=30,
            verify=self.trusted,
        )
        if answer.is_error:
            raise ApiRefused(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()
