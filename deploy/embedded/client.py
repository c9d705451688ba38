"""HTTP client that `up` uses for the public API, like any other caller."""

import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx


class ApiRefused(Exception):
    """The API returned an error. The message is readable text; `codes` are the reason codes."""

    def __init__(self, request: str, status: int, reasons: list[tuple[str, str]]) -> None:
        self.codes = frozenset(code for code, _ in reasons)
        messages = "; ".join(message for _, message in reasons) or "the API gave no reason"
        super().__init__(f"the API refused {request} with status {status}: {messages}")


@dataclass(frozen=True, slots=True)
class Api:
    url: str
    key: str = field(repr=False)
    trusted: ssl.SSLContext

    def get(self, path: str, **parameters: str) -> Any:
        return self._call("GET", path, parameters=parameters)

    def items(self, path: str, **parameters: str) -> list[dict[str, Any]]:
        """Request all pages of a list from the API, and return all items."""
        found: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.get(path, **parameters, **cursor)
            found += page["items"]
            if page.get("next_cursor") is None:
                return found
            cursor = {"cursor": page["next_cursor"]}

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", path, body)

    def put(self, path: str, body: dict[str, Any]) -> Any:
        return self._call("PUT", path, body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Any:
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Idempotency-Key": uuid.uuid4().hex,
        }
        response = httpx.request(
            method,
            httpx.URL(f"{self.url}/v1{path}").copy_merge_params(parameters or {}),
            json=body,
            headers=headers,
            timeout=30,
            verify=self.trusted,
        )
        if response.is_error:
            raise ApiRefused(
                request=f"{method} /v1{path}", status=response.status_code, reasons=_reasons(response)
            )
        return response.json()


def _reasons(response: httpx.Response) -> list[tuple[str, str]]:
    """Return the reason codes and messages in a problem document (RFC 9457), or an empty list for any other body."""
    try:
        return [(reason["code"], reason["message"]) for reason in response.json()["reasons"]]
    except (ValueError, KeyError, TypeError):
        return []
