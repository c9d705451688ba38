"""Promise P10: with many callers and few slots, no slot, MAC, IP address or public port is ever held twice, and no
request is refused while a slot is free, although programs of the API and Postgres are killed at random moments.

Each caller requests an allocation, releases it, waits until the release is complete, and begins again. A request
without an answer is repeated with the same idempotency key. The recorded history is checked against a model; then the
ledger is verified.
"""

import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import httpx
import pytest

from tests import matrix
from tests.faults.caller import KEY
from tests.faults.claims.history import Grant, Refusal, Span, objections
from tests.faults.processes import signal_all
from tests.faults.system import System, running_system
from tests.waiting import until

SLOTS: Final = 8
CALLERS: Final = 64
CLAIMS, GRANTS = (10_000, 500) if matrix.is_full() else (40, 10)
"""Numbers of answered claims, and of granted and released ones, after which the callers end."""
GRANTS_PER_KILL: Final = 20
"""Largest number of completed grants between two kills. The number is random, and at least one, so that the callers
progress however slowly killed programs start.
"""
DEADLINE_SECONDS: Final = 5400.0 if matrix.is_full() else 300.0
PAUSE_SECONDS: Final = 0.05
LONGEST_WAIT_SECONDS: Final = 5.0
"""A refused caller tries again after at most this time, so that the other callers release their slots meanwhile."""
RETRY_SECONDS: Final = 0.2
pytestmark = [pytest.mark.slow, pytest.mark.timeout(DEADLINE_SECONDS + 120)]


@dataclass
class Recorder:
    """The history of all callers, and the number of claims that were answered."""

    grants: list[Grant] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    unavailable: Counter[str] = field(default_factory=Counter)
    """Codes of refusals for other reasons than a lack of free slots, such as a node that is not reachable."""
    stopped: bool = False
    """Whether the callers must end without an answer, because the test has failed."""
    _begun: Iterator[int] = field(default_factory=count)

    def may_begin(self) -> bool:
        return next(self._begun) < CLAIMS or len(self.grants) < GRANTS

    def add(self, refusal: Refusal, codes: set[str]) -> None:
        if codes == {"no_capacity"}:
            self.refusals.append(refusal)
        else:
            self.unavailable.update(codes)


class ClaimingCaller:
    """One caller, with connections of its own to all programs of the API."""

    def __init__(self, system: System, recorder: Recorder, number: int) -> None:
        self._urls, self._recorder, self._number = system.stack.api_urls, recorder, number
        headers = {"Authorization": f"Bearer {system.key}"}
        self._client = httpx.Client(headers=headers, verify=system.stack.trusted, timeout=10)
        self._sku, self._calls, self._chance = system.sku, number, random.Random(number)

    def run(self) -> None:
        """Claim and release until all claims of the test are made."""
        with self._client:
            while self._recorder.may_begin():
                if not self._claim():
                    time.sleep(self._chance.uniform(0, LONGEST_WAIT_SECONDS))

    def _claim(self) -> bool:
        """Claim and release; return False if the claim was refused."""
        body: dict[str, Any] = {"sku": self._sku, "ssh_authorized_keys": [KEY]}
        if self._number % 2:
            body |= {"network_mode": "public-nat", "ingress": [{"port": 22}]}
        answer, first, last = self._call("POST", "/allocations", body)
        if answer.status_code == httpx.codes.CONFLICT:
            codes = {reason["code"] for reason in answer.json()["reasons"]}
            self._recorder.add(Refusal(last), codes)
            return False
        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
        shown = answer.json()
        released = self._release(shown["id"])
        self._recorder.grants.append(Grant(_resources(shown), first, released))
        return True

    def _release(self, allocation: str) -> Span:
        _, asked, _ = self._call("DELETE", f"/allocations/{allocation}")
        while True:
            answer, _, shown = self._call("GET", f"/allocations/{allocation}")
            if answer.json()["state"] in ("released", "failed"):
                return Span(asked.begin, shown.end)
            time.sleep(PAUSE_SECONDS)

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[httpx.Response, Span, Span]:
        """Send a request until the API answers it. Return the answer, the span from the first attempt to the answer,
        and the span of the last attempt.
        """
        key, begin, reason = uuid.uuid4().hex, time.monotonic(), "not sent"
        while not self._recorder.stopped:
            self._calls += 1
            url, sent = self._urls[self._calls % len(self._urls)], time.monotonic()
            try:
                answer = self._client.request(
                    method, f"{url}/v1{path}", json=body, headers={"Idempotency-Key": key}
                )
            except httpx.TransportError as error:
                reason = repr(error)
            else:
                now = time.monotonic()
                if not answer.headers.get("retry-after"):
                    return answer, Span(begin, now), Span(sent, now)
                reason = f"{answer.status_code} {answer.text}"
            time.sleep(RETRY_SECONDS)
        raise TimeoutError(f"{method} {path} was not answered in time; the last time: {reason}")


def _resources(shown: dict[str, Any]) -> frozenset[str]:
    [slot] = shown["slots"]
    ports = (f"port {each['public_address']}:{each['public_port']}" for each in shown["ingress"])
    own = (f"slot {slot['slot_id']}", f"mac {slot['mac_address']}", f"ip {slot['private_ip']}")
    return frozenset((*own, *ports))


def kill_at_random(system: System, chance: random.Random) -> str:
    """Kill a program of the API, or Postgres with all its processes; return its name."""
    if chance.random() < 0.3:
        signal_all(system.stack.servers["postgres"], signal.SIGKILL)
        return "postgres"
    system.children("api")[chance.randrange(len(system.children("api")))].send(signal.SIGKILL)
    return "api"


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with running_system(boot_seconds=0, plain_slots=SLOTS) as running:
        yield running


def test_no_resource_is_granted_twice_and_no_request_is_refused_with_a_free_slot_while_programs_are_killed(
    system: System,
) -> None:
    recorder, chance, kills = Recorder(), random.Random(matrix.seed()), Counter[str]()
    slots = [f"slot {each['id']}" for each in system.call("GET", "/slots")["items"]]
    assert len(slots) == SLOTS
    with ThreadPoolExecutor(CALLERS) as pool:
        callers = [pool.submit(ClaimingCaller(system, recorder, number).run) for number in range(CALLERS)]
        due = 1

        def all_done() -> bool:
            nonlocal due
            system.supervise()
            if len(recorder.grants) >= due:
                kills[kill_at_random(system, chance)] += 1
                due = len(recorder.grants) + chance.randint(1, GRANTS_PER_KILL)
            return all(each.done() for each in callers)

        try:
            until(all_done, "every claim was made and released", DEADLINE_SECONDS)
        finally:
            recorder.stopped = True
            print(f"{len(recorder.grants)} grants, {len(recorder.refusals)} refusals, {kills} killed")
    for each in callers:
        each.result()
    print(f"unavailable: {recorder.unavailable}")
    assert objections(slots, recorder.grants, recorder.refusals) == ()
    assert recorder.refusals
    until(lambda: system.verified() == [], "the read models agree with the ledger")
