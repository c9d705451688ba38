"""The access log is complete while API processes are killed: every request is in it once, with its true outcome.

Promise P31 requires 10,000 requests. The usual run sends one twenty-fifth of them, `./dev torture --only P31` all of
them. A run in which no kill interrupted a request proves nothing and fails.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests import torture
from tests.api.access.principals import Key, issue
from tests.api.api_process import ApiProcess, api_process
from tests.servers.plane import TLS_CONTEXT, RunningPlane
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
WORKERS: Final = 8
PER_KILL: Final = 80
"""Number of requests between two kills."""


@dataclass
class Sent:
    """Requests that were sent: the status of each answered request by its id, and the number of unanswered ones."""

    total: int
    answered: dict[str, int] = field(default_factory=dict)
    unanswered: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def done(self) -> int:
        return len(self.answered) + self.unanswered

    def send(self, processes: list[ApiProcess], key: Key, number: int) -> None:
        """Send request `number` to one of the processes. While the process does not listen, try again."""
        method, path, body = _request(number)
        url = f"{processes[number % len(processes)].plane.url}/v1{path}"
        while True:
            try:
                with httpx.Client(verify=TLS_CONTEXT, timeout=60) as client:
                    answer = client.request(method, url, headers=key.headers, json=body)
            except httpx.ConnectError:
                continue
            except httpx.TransportError:
                with self.lock:
                    self.unanswered += 1
                return
            with self.lock:
                self.answered[answer.headers["x-request-id"]] = answer.status_code
            return


def _request(number: int) -> tuple[str, str, Any]:
    match number % 4:
        case 0:
            return "POST", "/projects", {"id": f"project-{number}"}
        case 1:
            return "GET", "/projects", None
        case 2:
            return "POST", "/projects", {"id": number}
        case _:
            return "GET", f"/nodes/lost-{number}", None


class Follower:
    """A reader that follows the access log by position, page by page."""

    def __init__(self, plane: RunningPlane) -> None:
        self._plane, self._stop = plane, threading.Event()
        self.positions: list[int] = []
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        with self._plane.client() as client:
            while not self._stop.is_set():
                after = str(self.positions[-1] if self.positions else 0)
                page = client.get("/access-log", params={"after": after, "order": "asc", "limit": 20}).json()
                self.positions += [row["position"] for row in page["items"]]

    def end(self) -> list[int]:
        self._stop.set()
        self._thread.join(20)
        return self.positions


@pytest.fixture
def processes(running_plane: RunningPlane, tmp_path: Path) -> Iterator[list[ApiProcess]]:
    with ExitStack() as opened:
        yield [
            opened.enter_context(api_process(running_plane, tmp_path / f"api-{number}.log"))
            for number in range(2)
        ]


def test_every_request_is_in_the_access_log_once_with_its_true_outcome_while_api_processes_are_killed(
    running_plane: RunningPlane, processes: list[ApiProcess]
) -> None:
    count, key = torture.count(10_000, usual_share=50), issue(running_plane, "driver", "admin")
    sent, follower = Sent(count), Follower(running_plane)
    with ThreadPoolExecutor(WORKERS) as pool:
        for number in range(count):
            pool.submit(sent.send, processes, key, number)
        kills = kill_in_turn(processes, sent)
    # Only rows of this key: the follower sends requests without a pause, so a row of its own key is nearly always open.
    open_rows = "select 1 from work.access where position is null and credential = %(key)s"
    until(lambda: running_plane.rows(open_rows, key=key.id) == [], "no row of the sent requests is open")
    seen = follower.end()
    found = stored(running_plane, key)
    outcomes = Counter(outcome for _, outcome in found.values())
    print(f"{kills} kills; {len(sent.answered)} of {count} requests were answered; rows: {dict(outcomes)}")

    assert_answered_once(sent, found)
    assert len(sent.answered) <= len(found) <= count
    assert [request for request in of_events(running_plane) if request not in found] == []
    assert_followed(running_plane, seen)
    assert kills >= count // PER_KILL - 1
    assert outcomes["interrupted"] > 0, "no kill interrupted a request"


def kill_in_turn(processes: list[ApiProcess], sent: Sent) -> int:
    """Kill and restart the processes alternately while the requests are sent; return the number of kills."""
    for kills, process in enumerate(itertools.cycle(processes)):
        due = min((kills + 1) * PER_KILL, sent.total)
        until(lambda: sent.done >= due, "requests are answered", 120)  # noqa: B023 (called at once)
        if sent.done >= sent.total:
            return kills
        process.kill()
        process.start()
    raise AssertionError("unreachable")


def stored(plane: RunningPlane, key: Key) -> dict[str, tuple[int | None, str]]:
    """Return the status and the outcome that the access log has for each request with a key, by request id."""
    query = "select request_id, status, outcome from work.access where credential = %(key)s"
    return {request: (status, outcome) for request, status, outcome in plane.rows(query, key=key.id)}


def assert_answered_once(sent: Sent, found: dict[str, tuple[int | None, str]]) -> None:
    def is_true(request: str, status: int) -> bool:
        recorded, outcome = found.get(request, (None, "missing"))
        expected = "completed" if status < 400 else "failed" if status >= 500 else "refused"
        return outcome == "interrupted" or (recorded, outcome) == (status, expected)

    wrong = {request: status for request, status in sent.answered.items() if not is_true(request, status)}
    assert {request: (status, found.get(request)) for request, status in wrong.items()} == {}


def of_events(plane: RunningPlane) -> list[str]:
    """Return the ids of the requests that caused events of the created projects."""
    reasons = plane.rows("select reason from ledger.event where stream_id ~ '^project-project-'")
    return [reason.split()[2] for (reason,) in reasons]


def assert_followed(plane: RunningPlane, seen: list[int]) -> None:
    """Check that the follower has read every row up to its last position, in order."""
    all_rows = plane.rows(
        "select position from work.access where position <= %(last)s order by 1", last=seen[-1]
    )
    assert seen == [position for (position,) in all_rows]
