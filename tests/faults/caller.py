"""API client that repeats each request until it is answered, by any replica of the API and with the same idempotency
key.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import psycopg
import redis

from deploy.embedded.layout import Layout
from deploy.embedded.stack import Stack
from tests.waiting import until

KEY: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV test"
ENDS: Final = ("released", "failed")
"""States in which an allocation has ended. A failed allocation needs no release, because it releases its slots by
itself.
"""
TIMEOUT_SECONDS: Final = 60.0


@dataclass
class Caller:
    """API client with the admin key of a running control plane. It creates slices of one SKU. Every wait calls
    `supervise`, which restarts programs that died.
    """

    layout: Layout
    stack: Stack
    key: str = ""
    sku: str = "lab.small"
    _calls: int = field(default=0, repr=False)

    def supervise(self) -> None:
        self.stack.supervise()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request to the API, and repeat it until the response does not ask to retry later. Return the body of
        the response.
        """
        headers = {"Authorization": f"Bearer {self.key}", "Idempotency-Key": uuid.uuid4().hex}
        answers: list[httpx.Response] = []

        def answered() -> bool:
            self.supervise()
            self._calls += 1
            urls = self.stack.api_urls
            url = urls[self._calls % len(urls)]
            try:
                answer = httpx.request(
                    method,
                    f"{url}/v1{path}",
                    json=body,
                    headers=headers,
                    timeout=5,
                    verify=self.stack.trusted,
                )
            except httpx.TransportError:
                return False
            if answer.headers.get("retry-after"):
                return False
            answers.append(answer)
            return True

        until(answered, f"{method} {path} is answered", TIMEOUT_SECONDS)
        assert not answers[0].is_error, f"{method} {path}: {answers[0].status_code} {answers[0].text}"
        return answers[0].json()

    def create(self, **fields: object) -> str:
        asked = {"sku": self.sku, "ssh_authorized_keys": [KEY], **fields}
        return str(self.call("POST", "/allocations", asked)["id"])

    def release(self, allocation: str) -> None:
        self.call("DELETE", f"/allocations/{allocation}")

    def stop(self, allocation: str) -> None:
        self.call("POST", f"/allocations/{allocation}/stop")

    def release_all(self, *allocations: str) -> None:
        """Release every given allocation that has not ended and is not being released, and wait until all of them have
        ended.
        """
        for each in filter(None, allocations):
            if self.state(each) not in (*ENDS, "releasing"):
                self.release(each)
        open_ = set(filter(None, allocations))
        until(
            lambda: all(self.state(each) in ENDS for each in open_),
            f"{open_} are released",
            TIMEOUT_SECONDS,
        )

    def show(self, allocation: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/allocations/{allocation}")
        return found

    def state(self, allocation: str) -> str:
        return str(self.show(allocation)["state"])

    def await_state(self, allocation: str, state: str, seconds: float = TIMEOUT_SECONDS) -> None:
        until(lambda: self.state(allocation) == state, f"{allocation} is {state}", seconds)

    def is_active(self, allocation: str) -> bool:
        """Return whether the allocation is active, by its events and by its state in the read model."""
        return self.state(allocation) == "active" and "allocation.lease_granted" in self.timeline(allocation)

    def is_reachable(self, allocation: str) -> bool:
        """Return whether all ingress rules of the allocation are published."""
        return {way["state"] for way in self.show(allocation)["ingress"]} == {"published"}

    def timeline(self, allocation: str) -> list[str]:
        return [event["type"] for event in self.call("GET", f"/allocations/{allocation}/events")["items"]]

    def facts(self, *types: str) -> list[dict[str, Any]]:
        """Return the data of the events of these types that the ledger contains, beginning with the oldest."""
        picked = "&".join(f"type={each}" for each in types)
        return [event["data"] for event in self.call("GET", f"/events?limit=500&{picked}")["items"]]

    def tasks_in_flight(self) -> int:
        """Return the number of unfinished tasks, whether or not they were already sent to their node."""
        with psycopg.connect(self.stack.admin_dsn) as conn:
            row = conn.execute("select count(*) from work.task where ended_at is null").fetchone()
        return int(row[0]) if row else 0

    def redis(self) -> "redis.Redis":
        return redis.Redis.from_url(self.stack.redis_url, socket_timeout=5)

    def verified(self) -> list[Any]:
        """Verify the read models, and return the differences between a replay of the whole ledger and
        the live tables.
        """
        asked = self.call("POST", "/verifications")["id"]
        found: list[dict[str, Any]] = []

        def ended() -> bool:
            found[:] = [self.call("GET", f"/verifications/{asked}")]
            return found[0]["ended_at"] is not None

        until(ended, "the ledger is verified", TIMEOUT_SECONDS)
        assert found[0]["stopped"] is None, found[0]
        return list(found[0]["differences"])
