"""Fake of the control plane's HTTP interface for agents, for tests of the agent alone.

It stores each report once and in order, as the real intake does, and answers 409 when a report is missing. Tests can
make it reject requests, close connections without an answer, or lose the reports that it stored.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from uuid import UUID

from pydantic import BaseModel

from control_plane.queues.redis_nodes import NodeLogin
from events.values import index_of
from tasks.agent_api import (
    DesiredState,
    Enrolment,
    EnrolmentClaims,
    HeadsConsistent,
    HeadSizes,
    Heartbeat,
    HeartbeatAnswer,
    HeldOrders,
    ProgressBatch,
    Queue,
    Renewal,
    RenewalClaims,
    SessionGrant,
)
from tasks.orders import Order
from tasks.reports import Report, ReportBatch, ReportBody, ReportsTaken
from tasks.signing import public_key, verify
from tests.agent.eventually import eventually
from tests.agent.task_signing import SIGNER, sealed

TOKEN = "a-token-for-one-use-only"

Mode = Literal["available", "unavailable", "dropping", "refusing", "throttling"]
"""`available` answers normally. `unavailable` answers 503 to every request. `dropping` stores reports and closes the
connection without an answer. `refusing` answers 401. `throttling` answers 429 to one report request and then becomes
`available`."""
THROTTLED_SECONDS = 2
NO_HEADERS: Mapping[str, str] = {}


class FakeControlPlane:
    """Fake control plane with its state in memory; `mode` selects how it answers requests. Thread-safe."""

    def __init__(self) -> None:
        self.mode: Mode = "available"
        self.queue = Queue(host="127.0.0.1", port=1, username="node-lab-a", namespace="ctl:lab-a")
        self.desired: list[Order] = []
        self.comparisons: list[HeldOrders] = []
        self.now: datetime | None = None
        self.enrolments: list[EnrolmentClaims] = []
        self.renewals: list[RenewalClaims] = []
        self.token = TOKEN
        self._claims_by_token: dict[str, EnrolmentClaims] = {}
        self.order_keys: tuple[str, ...] = (SIGNER.public,)
        self.sealing_keys: tuple[str, ...] = ()
        self.consistency: Callable[[HeadSizes], HeadsConsistent | None] = lambda _sizes: None
        self.consistency_requests: list[HeadSizes] = []
        self.lifetime_seconds = 900.0
        self.heartbeat_seconds = 5.0
        self.number = 0
        self.session: EnrolmentClaims | RenewalClaims | None = None
        self.on_session: Callable[[NodeLogin], None] = lambda _login: None
        self._public_key = ""
        self.heartbeats: list[Heartbeat] = []
        self.progress: list[ProgressBatch] = []
        self.batches = 0
        self.reported_at: list[float] = []
        self.rejected_requests = 0
        self._reports: list[Report] = []
        self._accepted: dict[UUID, int] = {}
        self._lock = threading.Lock()

    @property
    def reports(self) -> list[Report]:
        with self._lock:
            return list(self._reports)

    @property
    def incarnations(self) -> list[UUID]:
        with self._lock:
            return list(self._accepted)

    def kinds(self) -> list[str]:
        return [report.body.kind for report in self.reports]

    def bodies(self, kind: type[ReportBody] | type[BaseModel]) -> list[BaseModel]:
        """Return the bodies of all stored reports of one type."""
        return [report.body for report in self.reports if isinstance(report.body, kind)]

    def await_kind(self, kind: str, count: int = 1, within: float = 15.0) -> None:
        eventually(
            lambda: self.kinds().count(kind) >= count,
            within,
            lambda: f"expected {count} reports of kind {kind}, received {self.kinds()}",
        )

    def forget_reports(self) -> None:
        """Reset the last stored sequence number of each spool to 0, as a restore from an old backup does."""
        with self._lock:
            self._accepted = dict.fromkeys(self._accepted, 0)

    def take(self, batch: ReportBatch) -> ReportsTaken | int:
        """Store a batch of reports; return the acknowledgement, or the first missing sequence number after a gap."""
        with self._lock:
            self.batches += 1
            accepted = self._accepted.get(batch.incarnation, 0)
            if batch.reports[0].sequence > accepted + 1:
                return accepted + 1
            new_reports = [report for report in batch.reports if report.sequence > accepted]
            self._reports += new_reports
            self._accepted[batch.incarnation] = max(accepted, batch.reports[-1].sequence)
            return ReportsTaken(sequence=self._accepted[batch.incarnation])

    def compare(self, held_orders: HeldOrders) -> DesiredState:
        """Compare the orders that a node holds with `desired`.

        Return the desired orders that the node lacks, and the slots for which `desired` has no order or an older one.
        """
        self.comparisons.append(held_orders)
        desired = {index_of(order.slot_id): order for order in self.desired}
        held = {each.index: each for each in held_orders.held}
        unknown = tuple(
            index
            for index, each in held.items()
            if index not in desired or (each.epoch, each.position) > desired[index].token
        )
        differing = [
            order
            for index, order in desired.items()
            if index not in unknown and (index not in held or held[index].sha256 != text_digest(order))
        ]
        return DesiredState(orders=tuple(map(sealed, differing)), unknown=unknown)

    def is_authorized(self, authorization: str | None) -> bool:
        node, _, credential = (authorization or "").removeprefix("Bearer ").partition(":")
        digest = hashlib.sha256(credential.encode()).hexdigest()
        known = self.session
        return known is not None and (known.node_id, known.credential_sha256) == (node, digest)

    def enrol(self, enrolment: Enrolment) -> SessionGrant | None:
        """Return a new session, or None if the token is wrong or was used before with different signed claims."""
        if enrolment.token != self.token:
            return None
        self._public_key = enrolment.public_key
        claims = EnrolmentClaims.model_validate_json(self._verified(enrolment.proof))
        with self._lock:
            if self._claims_by_token.setdefault(enrolment.token, claims) != claims:
                return None
            self.enrolments.append(claims)
            return self._granted(claims)

    def renew(self, renewal: Renewal) -> SessionGrant | None:
        """Return a new session, or None if the signed claims of the renewal do not continue the newest session."""
        claims = RenewalClaims.model_validate_json(self._verified(renewal.proof))
        with self._lock:
            self.renewals.append(claims)
            if claims != self.session and not self._continues_newest_session(claims):
                return None
            return self._granted(claims)

    def _continues_newest_session(self, claims: RenewalClaims) -> bool:
        newest = self.session and (self.number, self.session.credential_sha256)
        return newest == (claims.number, claims.presented_sha256)

    def _verified(self, proof: str) -> bytes:
        key = public_key(self._public_key)
        return verify(proof, "session+jws", {key.thumbprint(): key})

    def _granted(self, claims: EnrolmentClaims | RenewalClaims) -> SessionGrant:
        if claims != self.session:
            prior = None if self.session is None else self.session.queue_password_sha256
            self.number, self.session = self.number + 1, claims
            self.on_session(NodeLogin(claims.node_id, claims.queue_password_sha256, prior))
        return SessionGrant(
            node_id="lab-a",
            number=self.number,
            lifetime_seconds=self.lifetime_seconds,
            order_keys=self.order_keys,
            sealing_keys=self.sealing_keys,
            subnet="10.100.1.0/24",
            queue=self.queue,
            heartbeat_seconds=self.heartbeat_seconds,
        )


def text_digest(order: Order) -> str:
    """Return the SHA-256 of an order's JSON text, which is the digest that the control plane stores."""
    return hashlib.sha256(order.model_dump_json().encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    plane: FakeControlPlane

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match self.path:
            case "/v1/agent/enroll":
                self._grant("token", lambda: self.plane.enrol(Enrolment.model_validate_json(content)))
            case "/v1/agent/sessions":
                self._grant("session", lambda: self.plane.renew(Renewal.model_validate_json(content)))
            case "/v1/agent/heartbeat":
                self.plane.heartbeats.append(Heartbeat.model_validate_json(content))
                self._answer(lambda: HeartbeatAnswer(now=self.plane.now or datetime.now(UTC)))
            case "/v1/agent/desired-state":
                self._answer(lambda: self.plane.compare(HeldOrders.model_validate_json(content)))
            case "/v1/agent/consistency":
                self._prove(HeadSizes.model_validate_json(content))
            case "/v1/agent/progress":
                self.plane.progress.append(ProgressBatch.model_validate_json(content))
                self._send(204, b"")
            case "/v1/agent/reports":
                self._reports(ReportBatch.model_validate_json(content))
            case _:
                self._send(404, b"{}")

    def _grant(self, what: str, grant: Callable[[], SessionGrant | None]) -> None:
        if self.plane.mode in ("unavailable", "dropping"):
            self.plane.rejected_requests += 1
            return self._send(503, b"{}")
        granted = None if self.plane.mode == "refusing" else grant()
        if granted is None:
            return self._send(403, b'{"title":"Forbidden","detail":"the %s is not valid"}' % what.encode())
        return self._send(200, granted.model_dump_json().encode())

    def _reports(self, batch: ReportBatch) -> None:
        if self.plane.mode in ("unavailable", "refusing") or not self.plane.is_authorized(
            self.headers["Authorization"]
        ):
            return self._answer(lambda: DesiredState(orders=()))
        self.plane.reported_at.append(time.monotonic())
        if self.plane.mode == "throttling":
            self.plane.mode = "available"
            return self._send(429, b"{}", {"Retry-After": str(THROTTLED_SECONDS)})
        accepted = self.plane.take(batch)
        if self.plane.mode == "dropping":
            self.close_connection = True
            return None
        if isinstance(accepted, int):
            return self._send(
                409,
                b'{"title":"Conflict","reasons":[{"code":"report_missing","message":"an earlier report is missing"}]}',
            )
        return self._send(200, accepted.model_dump_json().encode())

    def _prove(self, sizes: HeadSizes) -> None:
        self.plane.consistency_requests.append(sizes)
        proof = self.plane.consistency(sizes)
        if proof is None and self.plane.mode == "available":
            return self._send(
                409, b'{"title":"Conflict","detail":"not sealed","reasons":[{"code":"not_sealed"}]}'
            )
        return self._answer(lambda: proof or HeadsConsistent(hashes=()))

    def _answer(self, answer: Callable[[], BaseModel]) -> None:
        if self.plane.mode in ("unavailable", "dropping"):
            self.plane.rejected_requests += 1
            return self._send(503, b"{}")
        if self.plane.mode == "refusing" or not self.plane.is_authorized(self.headers["Authorization"]):
            self.plane.rejected_requests += 1
            return self._send(401, b'{"title":"Unauthorized","detail":"unknown node"}')
        return self._send(200, answer().model_dump_json().encode())

    def _send(self, status: int, content: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Suppress the log message of the HTTP server."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of HTTP requests, because a killed agent leaves an incomplete request."""


@contextmanager
def serving(plane: FakeControlPlane, port: int = 0, address: str = "127.0.0.1") -> Iterator[str]:
    """Serve the fake control plane `plane` over HTTP on `address` and yield the URL of the server."""
    server = _Server((address, port), type("Handler", (_Handler,), {"plane": plane}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
