"""The control plane's side of the agent's HTTP interface, for tests of the agent alone.

It takes reports as intake must: each once and in order, and it says which it wants when they are not. Tests turn it
away, break its answers off, or take its memory.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from uuid import UUID

from pydantic import BaseModel

from tasks.agent_api import DesiredState, Enrolled, Enrolment, Heartbeat, HeartbeatAnswer, Queue
from tasks.orders import Order
from tasks.reports import Report, ReportBatch, ReportBody, ReportsTaken
from tests.agent.eventually import eventually

TOKEN = "a-token-for-one-use-only"

Mood = Literal["well", "away", "deaf", "refusing"]
"""`away` answers 503 to everything, `deaf` takes reports and breaks off, `refusing` answers 401."""


class FakeControlPlane:
    def __init__(self) -> None:
        self.mood: Mood = "well"
        self.queue = Queue(host="127.0.0.1", port=1, username="node-lab-a", namespace="ctl:lab-a")
        self.desired: list[Order] = []
        self.now: datetime | None = None
        self.enrolments: list[Enrolment] = []
        self.heartbeats: list[Heartbeat] = []
        self.batches = 0
        self.turned_away = 0
        self._reports: list[Report] = []
        self._taken: dict[UUID, int] = {}
        self._lock = threading.Lock()

    @property
    def reports(self) -> list[Report]:
        with self._lock:
            return list(self._reports)

    @property
    def incarnations(self) -> list[UUID]:
        with self._lock:
            return list(self._taken)

    def kinds(self) -> list[str]:
        return [report.body.kind for report in self.reports]

    def told(self, kind: type[ReportBody] | type[BaseModel]) -> list[BaseModel]:
        return [report.body for report in self.reports if isinstance(report.body, kind)]

    def await_kind(self, kind: str, count: int = 1, within: float = 15.0) -> None:
        eventually(
            lambda: self.kinds().count(kind) >= count, within, lambda: f"no {count} {kind} in {self.kinds()}"
        )

    def forget_reports(self) -> None:
        """As after a restore from an old backup."""
        with self._lock:
            self._taken = dict.fromkeys(self._taken, 0)

    def take(self, batch: ReportBatch) -> ReportsTaken | int:
        """What was taken, or the sequence that is wanted instead."""
        with self._lock:
            self.batches += 1
            taken = self._taken.get(batch.incarnation, 0)
            if batch.reports[0].sequence > taken + 1:
                return taken + 1
            fresh = [report for report in batch.reports if report.sequence > taken]
            self._reports += fresh
            self._taken[batch.incarnation] = max(taken, batch.reports[-1].sequence)
            return ReportsTaken(sequence=self._taken[batch.incarnation])

    def is_known(self, authorization: str | None) -> bool:
        node, _, credential = (authorization or "").removeprefix("Bearer ").partition(":")
        digest = hashlib.sha256(credential.encode()).hexdigest()
        return any(e.node_id == node and e.credential_sha256 == digest for e in self.enrolments)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    plane: FakeControlPlane

    def do_GET(self) -> None:
        self._answer(lambda: DesiredState(orders=tuple(self.plane.desired)))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match self.path:
            case "/v1/agent/enroll":
                self._enrol(content)
            case "/v1/agent/heartbeat":
                self.plane.heartbeats.append(Heartbeat.model_validate_json(content))
                self._answer(lambda: HeartbeatAnswer(now=self.plane.now or datetime.now(UTC)))
            case "/v1/agent/reports":
                self._reports(ReportBatch.model_validate_json(content))
            case _:
                self._send(404, b"{}")

    def _enrol(self, content: bytes) -> None:
        if self.plane.mood == "away":
            return self._send(503, b"{}")
        enrolment = Enrolment.model_validate_json(content)
        if enrolment.token != TOKEN or self.plane.mood == "refusing":
            return self._send(403, b'{"title":"Forbidden","detail":"the token is not valid"}')
        self.plane.enrolments.append(enrolment)
        enrolled = Enrolled(node_id=enrolment.node_id, subnet="10.100.1.0/24", queue=self.plane.queue)
        return self._send(200, enrolled.model_dump_json().encode())

    def _reports(self, batch: ReportBatch) -> None:
        if self.plane.mood in ("away", "refusing") or not self.plane.is_known(self.headers["Authorization"]):
            return self._answer(lambda: DesiredState(orders=()))
        taken = self.plane.take(batch)
        if self.plane.mood == "deaf":
            self.close_connection = True
            return None
        if isinstance(taken, int):
            return self._send(
                409,
                b'{"title":"Conflict","reasons":[{"code":"report_missing","message":"first things first"}]}',
            )
        return self._send(200, taken.model_dump_json().encode())

    def _answer(self, answer: Callable[[], BaseModel]) -> None:
        if self.plane.mood in ("away", "deaf"):
            return self._send(503, b"{}")
        if self.plane.mood == "refusing" or not self.plane.is_known(self.headers["Authorization"]):
            self.plane.turned_away += 1
            return self._send(401, b'{"title":"Unauthorized","detail":"unknown node"}')
        return self._send(200, answer().model_dump_json().encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Silent."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """An agent that was killed leaves its connection half used."""


@contextmanager
def serving(plane: FakeControlPlane, port: int = 0, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve on `address`; gives the URL."""
    server = _Server((address, port), type("Handler", (_Handler,), {"plane": plane}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
