"""HTTP client of the control plane's agent API, with typed requests, responses and errors.

`ControlPlaneUnavailable` is a temporary failure: the request may be retried. `RequestRejected` is not temporary: the
control plane rejected this node or this request. No failure of a request ever affects running slices.
Over TLS, a server with a certificate that cannot be verified counts as temporarily unavailable: another server may
answer later, and this machine's clock may be corrected.
"""

from http import HTTPStatus
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel, ValidationError
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import ClosedPoolError, HTTPError

from node_agent.settings import Settings, SettingsRefused
from node_agent.transport.http_clients import SharedClient
from tasks.agent_api import (
    DesiredState,
    Enrolment,
    HeadsConsistent,
    HeadSizes,
    Heartbeat,
    HeartbeatAnswer,
    HeldOrders,
    ProgressBatch,
    Renewal,
    SessionGrant,
)
from tasks.reports import ReportBatch, ReportsTaken
from tasks.streams import SerialLogSent
from tasks.trust import why_untrusted

Answer = TypeVar("Answer", bound=BaseModel)

_RETRYABLE: Final = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)


LONGEST_WAIT: Final = 300.0
"""Longest delay in seconds that a response may request; a longer one is an error of a proxy."""


class ControlPlaneUnavailable(Exception):
    """A request failed and may be retried: connection error, timeout, 5xx, 408, 425 or 429.

    `retry_after` is the minimum delay in seconds from the response's header `Retry-After`, or 0 without this header.
    """

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class RequestRejected(Exception):
    """The control plane rejected a request with `status`; a retry of the same request would be rejected too."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason


class ReportMissing(RequestRejected):
    """The control plane has not received earlier reports of this node's spool, or has lost them, and requires them
    first.
    """


class _Reason(BaseModel):
    code: str


class _Problem(BaseModel):
    """Fields of an RFC 9457 problem response that the agent reads; it ignores the other fields."""

    title: str = ""
    detail: str = ""
    reasons: tuple[_Reason, ...] = ()


def enrol(settings: Settings, enrolment: Enrolment) -> SessionGrant:
    """Enrol the node with a one-time token. Raises `ControlPlaneUnavailable`, `RequestRejected`."""
    with _client(settings) as http:
        return _read(_posted(http, "/v1/agent/enroll", enrolment), SessionGrant)


def request_session(settings: Settings, renewal: Renewal) -> SessionGrant:
    """Request a new session in place of the node's session. Raises `ControlPlaneUnavailable`, `RequestRejected`."""
    with _client(settings) as http:
        return _read(_posted(http, "/v1/agent/sessions", renewal), SessionGrant)


class Credentials(Protocol):
    """The node's bearer token, which can be renewed when the control plane rejects it."""

    @property
    def bearer(self) -> str: ...

    def renew_if_unchanged(self, bearer: str) -> bool:
        """Renew the session if its token is still the rejected `bearer`; return whether the token has changed."""
        ...


class ControlPlane:
    """Client for the requests of an enrolled node to the control plane. Thread-safe.

    Every method raises `ControlPlaneUnavailable` and `RequestRejected`.
    """

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self._client = _client(settings)
        self._credentials = credentials

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Send a heartbeat of the node to the control plane."""
        return _read(self._post("/v1/agent/heartbeat", heartbeat), HeartbeatAnswer)

    def desired_state(self, held: HeldOrders) -> DesiredState:
        """Return the control plane's orders that differ from the node's stored orders or are missing on the node."""
        return _read(self._post("/v1/agent/desired-state", held), DesiredState)

    def consistency(self, sizes: HeadSizes) -> HeadsConsistent:
        """Return the proof that the ledger's Merkle tree of one size is a prefix of that of a larger size."""
        return _read(self._post("/v1/agent/consistency", sizes), HeadsConsistent)

    def report(self, batch: ReportBatch) -> ReportsTaken:
        """Deliver a batch of reports to the control plane.

        Raises `ReportMissing` if the control plane lacks an earlier report, and the errors that every method raises.
        """
        return _read(self._post("/v1/agent/reports", batch), ReportsTaken)

    def progress(self, batch: ProgressBatch) -> None:
        """Deliver the progress of tasks to the control plane."""
        self._post("/v1/agent/progress", batch)

    def send_serial_log(self, answer: SerialLogSent) -> None:
        """Send the answer to a request for the serial log of a slice."""
        self._post("/v1/agent/serial-logs", answer)

    def _post(self, path: str, body: BaseModel) -> BaseHTTPResponse:
        """Send a request, and repeat it once if its token was rejected and the session could be renewed."""
        bearer = self._credentials.bearer
        try:
            return _posted(self._client, path, body, bearer)
        except RequestRejected as refusal:
            if refusal.status != HTTPStatus.UNAUTHORIZED or not self._credentials.renew_if_unchanged(bearer):
                raise
        return _posted(self._client, path, body, self._credentials.bearer)

    def close(self) -> None:
        self._client.close()


def _client(settings: Settings) -> SharedClient:
    try:
        return SharedClient(settings)
    except SettingsRefused as refused:
        # The settings were valid when the agent started, so the CA file is being replaced: a later retry succeeds.
        raise ControlPlaneUnavailable(str(refused)) from refused


def _read(response: BaseHTTPResponse, answer: type[Answer]) -> Answer:
    try:
        return answer.model_validate_json(response.data)
    except ValidationError as error:
        # Another server answers on this address, or an incompatible control plane: both may be temporary.
        raise ControlPlaneUnavailable(
            f"the response from {response.url} is not a valid {answer.__name__}: {error}"
        ) from error


def _posted(http: SharedClient, path: str, body: BaseModel, bearer: str | None = None) -> BaseHTTPResponse:
    headers = {"Content-Type": "application/json"}
    if bearer is not None:
        headers["Authorization"] = f"Bearer {bearer}"
    try:
        response = http.post(path, body.model_dump_json(), headers)
    except ClosedPoolError as error:
        # An agent that stops closes the pool under a job that outlasts the shutdown's timeout.
        raise ControlPlaneUnavailable(
            f"the request to {path} was not sent, because the agent is stopping"
        ) from error
    except HTTPError as error:
        raise ControlPlaneUnavailable(
            why_untrusted(error) or f"the control plane did not answer: {type(error).__name__}: {error}"
        ) from error
    if response.status in _RETRYABLE or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ControlPlaneUnavailable(
            f"the control plane returned status {response.status} for {path}", _retry_after(response)
        )
    if response.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise _refusal(response)
    return response


def _retry_after(response: BaseHTTPResponse) -> float:
    """Return the seconds in a `Retry-After` header; 0 for a date, which only proxies send, or for a missing header."""
    header = response.headers.get("Retry-After", "")
    return min(float(header), LONGEST_WAIT) if header.isascii() and header.isdigit() else 0.0


def _refusal(response: BaseHTTPResponse) -> RequestRejected:
    try:
        problem = _Problem.model_validate_json(response.data)
    except ValidationError:
        problem = _Problem(detail=response.data.decode(errors="replace")[:500])
    missing = any(reason.code == "report_missing" for reason in problem.reasons)
    kind = ReportMissing if missing else RequestRejected
    return kind(response.status, problem.detail or problem.title or response.reason or "")
