"""The agent's side of the control plane's HTTP interface: typed questions, typed answers, few ways to fail.

`ControlPlaneAway` passes by itself: wait and ask again. `TurnedAway` does not: the control plane answered and will
not have this node, or this request. What a failure means for slices is the same in every case: nothing.
Over TLS, a control plane that is not believed is away: who answers may change, and so may this machine's clock.
"""

from http import HTTPStatus
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel, ValidationError
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import ClosedPoolError, HTTPError

from node_agent.http_clients import SharedClient
from node_agent.settings import Settings, SettingsRefused
from tasks.agent_api import (
    DesiredState,
    Enrolment,
    Granted,
    Heartbeat,
    HeartbeatAnswer,
    HeldOrders,
    ProgressBatch,
    Renewal,
)
from tasks.reports import ReportBatch, ReportsTaken
from tasks.trust import why_untrusted

Answer = TypeVar("Answer", bound=BaseModel)

_PASSING: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


LONGEST_WAIT: Final = 300.0
"""Longest delay in seconds that a response may request; a longer one is an error of a proxy."""


class ControlPlaneAway(Exception):
    """A request failed and may be retried: connection error, timeout, 5xx, 408, 425 or 429.

    `retry_after` is the minimum delay in seconds that the response names (`Retry-After`), else 0.
    """

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class TurnedAway(Exception):
    """The control plane answered `status`, and asking the same again will not change that."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason


class ReportMissing(TurnedAway):
    """The control plane wants earlier reports of this spool first: it never had them, or lost them."""


class _Reason(BaseModel):
    code: str


class _Problem(BaseModel):
    """What the agent reads of an RFC 9457 problem; the rest is for people."""

    title: str = ""
    detail: str = ""
    reasons: tuple[_Reason, ...] = ()


def enrol(settings: Settings, enrolment: Enrolment) -> Granted:
    """Present the one-time token. Raises `ControlPlaneAway`, `TurnedAway`."""
    with _client(settings) as http:
        return _read(_answered(http, "/v1/agent/enroll", enrolment), Granted)


def ask_for_session(settings: Settings, renewal: Renewal) -> Granted:
    """Ask to go on from a session to a new one. Raises `ControlPlaneAway`, `TurnedAway`."""
    with _client(settings) as http:
        return _read(_answered(http, "/v1/agent/sessions", renewal), Granted)


class Credentials(Protocol):
    """What the node shows, and how it gets something else to show when that is refused."""

    @property
    def bearer(self) -> str: ...

    def renew_if_still(self, bearer: str) -> bool:
        """Whether there is something else to show than the refused `bearer`."""
        ...


class ControlPlane:
    """Every method may be called from any thread, and raises `ControlPlaneAway` and `TurnedAway`."""

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self._client = _client(settings)
        self._credentials = credentials

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        return _read(self._ask("/v1/agent/heartbeat", heartbeat), HeartbeatAnswer)

    def desired_state(self, held: HeldOrders) -> DesiredState:
        """What the node should hold and does not."""
        return _read(self._ask("/v1/agent/desired-state", held), DesiredState)

    def report(self, batch: ReportBatch) -> ReportsTaken:
        """Also raises `ReportMissing`."""
        return _read(self._ask("/v1/agent/reports", batch), ReportsTaken)

    def progress(self, batch: ProgressBatch) -> None:
        self._ask("/v1/agent/progress", batch)

    def _ask(self, path: str, question: BaseModel) -> BaseHTTPResponse:
        """Ask, and once more when the session was renewed meanwhile or could be."""
        bearer = self._credentials.bearer
        try:
            return _answered(self._client, path, question, bearer)
        except TurnedAway as refusal:
            if refusal.status != HTTPStatus.UNAUTHORIZED or not self._credentials.renew_if_still(bearer):
                raise
        return _answered(self._client, path, question, self._credentials.bearer)

    def close(self) -> None:
        self._client.close()


def _client(settings: Settings) -> SharedClient:
    try:
        return SharedClient(settings)
    except SettingsRefused as refused:
        # It was good when the agent started: whoever exchanges the file will end that.
        raise ControlPlaneAway(str(refused)) from refused


def _read(response: BaseHTTPResponse, answer: type[Answer]) -> Answer:
    try:
        return answer.model_validate_json(response.data)
    except ValidationError as error:
        # Something else answers on this address, or a control plane that speaks otherwise: both may pass.
        raise ControlPlaneAway(f"{response.url} answered what is no {answer.__name__}: {error}") from error


def _answered(
    http: SharedClient, path: str, question: BaseModel, bearer: str | None = None
) -> BaseHTTPResponse:
    headers = {"Content-Type": "application/json"}
    if bearer is not None:
        headers["Authorization"] = f"Bearer {bearer}"
    try:
        response = http.post(path, question.model_dump_json(), headers)
    except ClosedPoolError as error:
        # By an agent that ends, under a job of its own that takes longer than it is waited for.
        raise ControlPlaneAway("the agent ends") from error
    except HTTPError as error:
        raise ControlPlaneAway(why_untrusted(error) or f"{type(error).__name__}: {error}") from error
    if response.status in _PASSING or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ControlPlaneAway(f"{response.status} from {path}", _retry_after(response))
    if response.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise _refusal(response)
    return response


def _retry_after(response: BaseHTTPResponse) -> float:
    """Return the seconds of `Retry-After`; 0 for a date, which only proxies send: the agent's own pauses apply."""
    header = response.headers.get("Retry-After", "")
    return min(float(header), LONGEST_WAIT) if header.isascii() and header.isdigit() else 0.0


def _refusal(response: BaseHTTPResponse) -> TurnedAway:
    try:
        problem = _Problem.model_validate_json(response.data)
    except ValidationError:
        problem = _Problem(detail=response.data.decode(errors="replace")[:500])
    missing = any(reason.code == "report_missing" for reason in problem.reasons)
    kind = ReportMissing if missing else TurnedAway
    return kind(response.status, problem.detail or problem.title or response.reason or "")
