"""Fuzzing of every route from the OpenAPI document of a running control plane, as each kind of principal.

schemathesis sends requests in four phases: the examples of the document, every boundary of every schema (`coverage`),
random requests (`fuzzing`), and sequences in which a request uses values of earlier responses (`stateful`). No response
may be a server error or violate the document in its status, media type, headers or schema; no request that violates the
document may be accepted; and no request may be accepted with wrong credentials.

The usual run takes one of the principals. It sends few random requests and the boundaries of a few operations, the same
in each run for this principal. `./dev torture --only P22` takes all principals, and sends all boundaries and more
random requests, with the seed of the run.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest
import schemathesis
from schemathesis.engine import events, from_schema
from schemathesis.hooks import GLOBAL_HOOK_DISPATCHER

from control_plane.api.requests.access import EXTENSION
from tests import matrix, torture
from tests.api.access.principals import Key, create_project, issue
from tests.api.node import admit, allocate
from tests.servers.plane import TLS_CONTEXT, RunningPlane

PRINCIPALS: Final = ("anonymous", "node", "caller", "admin")
"""The admin is the last one, because it may archive the project of the caller and revoke the credential of the node."""
_REQUEST_SECONDS: Final = 20
_STREAM_SECONDS: Final = 0.8
"""Time for which an event stream is read. Longer reading repeats the kinds of messages that it has already sent."""
_ACCEPTED_REFUSALS: Final = ["2xx", "3xx", "401", "403", "404", "409", "410", "412", "422", "429"]
"""Statuses of requests that match the schema. 422 is one of them: JSON Schema cannot state every rule, such as that an
address is inside a subnet.
"""
_SHOWN: Final = 20
_UNREADABLE: Final = r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]*$"
_READABLE: Final = r"^[^\x00-\x1f\x7f-\x9f\xad\u2028\u2029]*$"
"""Replacement for a pattern with `\\p`, which Python and therefore schemathesis do not support. It excludes fewer
texts.
"""


@dataclass(frozen=True)
class Sample:
    """Size of a run: the random requests per operation, the sequences, and the operations of the coverage phase."""

    requests: int
    sequences: int
    steps: int
    covered: frozenset[str]
    seed: int


@dataclass
class Findings:
    """What a run has sent and found: answered requests by phase, operations that were called and those that succeeded,
    and the failures of checks with one example each.
    """

    sent: Counter[str] = field(default_factory=Counter)
    called: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def report(self) -> str:
        """Return the first failures, each with a request that shows it."""
        first = list(self.failures.items())[:_SHOWN]
        return "\n\n".join(f"{' | '.join(place)}\n{example}" for place, example in first)

    def add(self, event: events.EngineEvent) -> None:
        match event:
            case events.ScenarioFinished():
                self._add_scenario(event)
            case events.NonFatalError() | events.FatalError():
                self.failures[type(event).__name__, "the run", ""] = str(event)
            case _:
                pass

    def _add_scenario(self, event: events.ScenarioFinished) -> None:
        found = event.recorder
        labels = {name: node.value.operation.label for name, node in found.cases.items()}
        for name, interaction in found.interactions.items():
            self.called.add(labels[name])
            if (response := interaction.response) is not None:
                self.sent[event.phase.value] += 1
                self.statuses[response.status_code] += 1
                if 200 <= response.status_code < 300:
                    self.succeeded.add(labels[name])
        for name, checks in found.checks.items():
            for each in checks:
                if each.failure_info is not None:
                    failure = each.failure_info.failure
                    place = (each.name, labels[name], f"{failure.title}: {failure.message}")
                    self.failures.setdefault(place, each.failure_info.code_sample)


@dataclass(frozen=True)
class Fleet:
    """A control plane with a node, a project and an allocation, and the credentials of each principal."""

    plane: RunningPlane
    document: dict[str, Any]
    headers: Mapping[str, dict[str, str]]
    own_keys: Mapping[str, Key]

    def operations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the label of each operation, such as `GET /v1/nodes`, and its declared access."""
        for path, operations in self.document["paths"].items():
            for method, operation in operations.items():
                yield f"{method.upper()} {path}", operation[EXTENSION]

    def labels(self) -> set[str]:
        return {label for label, _ in self.operations()}


@pytest.fixture(scope="module")
def fleet(shared_plane: RunningPlane) -> Fleet:
    create_project(shared_plane, "own")
    node = admit(shared_plane, "lab-a", slots=4)
    assert allocate(shared_plane, project="own").is_success
    keys = {
        "caller": issue(shared_plane, "ci", projects=["own"]),
        "admin": issue(shared_plane, "fuzz", "admin"),
    }
    document = shared_plane.document()
    headers = {
        "anonymous": {},
        "node": {"Authorization": node.headers["authorization"]},
        **{name: key.headers for name, key in keys.items()},
    }
    return Fleet(shared_plane, _readable(document), headers, keys)


def _readable(part: Any) -> Any:
    """Return a part of the document in which `_READABLE` replaces the pattern that schemathesis cannot read."""
    match part:
        case dict():
            return {name: _readable(each) for name, each in part.items()}
        case list():
            return [_readable(each) for each in part]
        case _:
            return _READABLE if part == _UNREADABLE else part


def sample(fleet: Fleet, principal: str) -> Sample:
    """Return the size of the run: all operations in `./dev torture`, otherwise the same few in each run."""
    if matrix.is_full():
        return Sample(40, 40, 30, frozenset(fleet.labels()), torture.seed())
    # Coverage is useful where requests pass the check of the role; a refused one shows its first check only.
    permitted = [
        label
        for label, declared in fleet.operations()
        if not declared["roles"] or principal in declared["roles"] or principal == "anonymous"
    ]
    few = {"anonymous": 1, "node": 1, "caller": 1, "admin": 3}[principal]
    return Sample(1, 1, 8, frozenset(random.Random(f"P22 {principal}").sample(permitted, few)), 1)


def settings(fleet: Fleet, principal: str, amount: Sample) -> schemathesis.Config:
    generation = {"max-examples": amount.requests, "database": "none", "deterministic": not matrix.is_full()}
    without_coverage = sorted(fleet.labels() - amount.covered)
    return schemathesis.Config.from_dict(
        {
            "base-url": fleet.plane.url,
            "headers": fleet.headers[principal],
            "seed": amount.seed,
            "workers": 1,
            "continue-on-failure": True,
            "request-timeout": _REQUEST_SECONDS,
            "max-stream-events": 1,
            "generation": {**generation, "no-shrink": True},
            "phases": {
                "stateful": {
                    "max-steps": amount.steps,
                    "generation": {**generation, "max-examples": amount.sequences},
                }
            },
            "checks": {
                "enabled": True,
                "positive_data_acceptance": {"expected-statuses": _ACCEPTED_REFUSALS},
                # DELETE releases an allocation and answers 202: its record and its events stay readable.
                "use_after_free": {"enabled": False},
            },
            "operations": [
                {"include-path-regex": "/watch$", "request-timeout": _STREAM_SECONDS},
                # No agent answers for the node of the fleet, so the answer is 503.
                {"include-path-regex": "/serial-log$", "checks": _SILENT_NODE},
                {"include-name": without_coverage, "phases": {"coverage": {"enabled": False}}},
            ],
        }
    )


_SILENT_NODE: Final = {
    "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503"]},
    "positive_data_acceptance": {"expected-statuses": [*_ACCEPTED_REFUSALS, "503"]},
}
"""Checks of requests that the API forwards to the node: as no agent runs, status 503 is accepted, too."""


@contextmanager
def _keys_protected(keys: Iterable[Key]) -> Iterator[None]:
    """Replace the ids of `keys` in requests that change a key or revoke a principal. If a principal revoked its own
    key, all its later requests would be refused.
    """
    protected = {key.id for key in keys}
    actors = {f"key:{each}" for each in protected}

    def before_call(context: Any, case: Any, kwargs: Any) -> None:
        if case.operation.label.startswith("POST /v1/keys/") and case.path_parameters.get("key") in protected:
            case.path_parameters["key"] = "no-such-key"
        if case.operation.label == "POST /v1/principals/revoke" and (
            isinstance(case.body, dict) and str(case.body.get("actor")) in actors
        ):
            case.body["actor"] = "key:no-such-key"

    schemathesis.hook(before_call)
    try:
        yield
    finally:
        GLOBAL_HOOK_DISPATCHER.unregister(before_call)


def run(fleet: Fleet, principal: str) -> Findings:
    """Send the requests of a run and return what it found."""
    findings = Findings()
    config = settings(fleet, principal, sample(fleet, principal))
    schema = schemathesis.openapi.from_dict(fleet.document, config=config)
    with _keys_protected(fleet.own_keys.values()):
        for event in from_schema(schema).execute():
            findings.add(event)
    return findings


@pytest.mark.timeout(1800)
@matrix.cases("P22", PRINCIPALS, few=1)
def test_no_request_causes_a_server_error_or_a_response_that_violates_the_document(
    fleet: Fleet, case: str
) -> None:
    principal = case
    findings = run(fleet, principal)
    print(principal, dict(findings.sent), dict(findings.statuses), len(findings.succeeded))
    assert not findings.failures, findings.report()
    assert findings.called == fleet.labels()
    assert set(findings.sent) == {"examples", "coverage", "fuzzing", "stateful"}
    assert len(findings.succeeded) >= {"anonymous": 4, "node": 8, "caller": 12, "admin": 30}[principal]
    if principal in fleet.own_keys:
        answer = httpx.get(
            f"{fleet.plane.url}/v1/whoami", headers=fleet.headers[principal], verify=TLS_CONTEXT
        )
        assert answer.is_success, (
            "the run revoked its own credentials, so that later requests were all refused"
        )
