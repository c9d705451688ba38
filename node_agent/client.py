"""The agent's side of the control plane's HTTP interface: typed questions, typed answers, few ways to fail.

`ControlPlaneAway` passes by itself: wait and ask again. `TurnedAway` does not: the control plane answered and will
not have this node, or this request. What a failure means for slices is the same in every case: nothing.
"""

from http import HTTPStatus
from typing import Final, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from events.values import NodeId
from tasks.agent_api import DesiredState, Enrolled, Enrolment, Heartbeat, HeartbeatAnswer
from tasks.reports import ReportBatch, ReportsTaken

Answer = TypeVar("Answer", bound=BaseModel)

_TIMEOUT: Final = httpx.Timeout(10.0, connect=3.0)
_PASSING: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


class ControlPlaneAway(Exception):
    """No answer, or one that says to come back: connection, time-out, 5xx, 408, 425, 429."""


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


def enrol(api_url: str, enrolment: Enrolment) -> Enrolled:
    """Present the one-time token. Raises `ControlPlaneAway`, `TurnedAway`."""
    with httpx.Client(base_url=api_url, timeout=_TIMEOUT, trust_env=False) as http:
        return _ask(http, "POST", "/v1/agent/enroll", Enrolled, enrolment)


class ControlPlane:
    """Every method may be called from any thread, and raises `ControlPlaneAway` and `TurnedAway`."""

    def __init__(self, api_url: str, node_id: NodeId, credential: str) -> None:
        self._http = httpx.Client(
            base_url=api_url,
            timeout=_TIMEOUT,
            # Proxies and .netrc of the host's root are not for the agent's secret.
            trust_env=False,
            headers={"Authorization": f"Bearer {node_id}:{credential}"},
        )

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        return _ask(self._http, "POST", "/v1/agent/heartbeat", HeartbeatAnswer, heartbeat)

    def desired_state(self) -> DesiredState:
        return _ask(self._http, "GET", "/v1/agent/desired-state", DesiredState)

    def report(self, batch: ReportBatch) -> ReportsTaken:
        """Also raises `ReportMissing`."""
        return _ask(self._http, "POST", "/v1/agent/reports", ReportsTaken, batch)

    def close(self) -> None:
        self._http.close()


def _ask(
    http: httpx.Client, method: str, path: str, answer: type[Answer], question: BaseModel | None = None
) -> Answer:
    content = None if question is None else question.model_dump_json()
    try:
        response = http.request(method, path, content=content, headers={"Content-Type": "application/json"})
    except httpx.HTTPError as error:
        raise ControlPlaneAway(f"{type(error).__name__}: {error}") from error
    if response.status_code in _PASSING or response.is_server_error:
        raise ControlPlaneAway(f"{response.status_code} from {path}")
    if not response.is_success:
        raise _refusal(response)
    try:
        return answer.model_validate_json(response.content)
    except ValidationError as error:
        # Something else answers on this address, or a control plane that speaks otherwise: both may pass.
        raise ControlPlaneAway(f"{path} answered what is no {answer.__name__}: {error}") from error


def _refusal(response: httpx.Response) -> TurnedAway:
    try:
        problem = _Problem.model_validate_json(response.content)
    except ValidationError:
        problem = _Problem(detail=response.text[:500])
    missing = any(reason.code == "report_missing" for reason in problem.reasons)
    kind = ReportMissing if missing else TurnedAway
    return kind(response.status_code, problem.detail or problem.title or response.reason_phrase)
