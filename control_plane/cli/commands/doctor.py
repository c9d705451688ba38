"""Command `sliceplane doctor`, which checks the connection, the versions, the key and the fleet to find a problem."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx
import msgspec
import typer

from control_plane.cli import diagnosis
from control_plane.cli.diagnosis import Finding, Verdict
from control_plane.cli.failures import Failure, NotReady, Unreachable, failure_of
from control_plane.cli.options import UnnamedOutput
from control_plane.cli.pages import diagnosis as pages
from control_plane.cli.screen import UnnamedFormat
from control_plane.cli.session import Session, refuse_as_curl, session
from control_plane.client import calls
from control_plane.client.access_answers import Caller
from control_plane.client.errors import ApiProblem, SliceplaneError
from control_plane.client.waits import UNFINISHED
from control_plane.version import release

_MOST_TASKS: Final = 200


def doctor(context: typer.Context, *, output: UnnamedOutput = UnnamedFormat.TABLE) -> None:
    """Find the cause of a problem: check the connection, clocks, versions, the key, and the state of the fleet.

    Each line is ok, warning, failed or skipped, with what to do. Exit code 1 if a check failed, 4 if the control plane
    is unreachable.
    """
    with session(context, output) as current:
        refuse_as_curl(context, "doctor")
        found: list[Finding] = []
        try:
            for finding in _findings(current):
                found.append(finding)
                if not current.screen.machine:
                    current.screen.page(pages.line(finding))
        except SliceplaneError as error:
            unreachable = failure_of(error)
            found.append(_failed("reachable", unreachable))
            if current.screen.machine:
                current.screen.document(msgspec.json.encode({"checks": found}))
            raise Unreachable(unreachable.what, *unreachable.advice) from error
        if current.screen.machine:
            current.screen.document(msgspec.json.encode({"checks": found}))
        if failed := [each.name for each in found if each.status is Verdict.FAILED]:
            raise NotReady(f"these checks failed: {', '.join(failed)}")


def _findings(current: Session) -> Iterator[Finding]:
    """Yield the findings of all checks. Raises a `SliceplaneError` if the control plane does not respond."""
    yield from _connection(current)
    yield diagnosis.version(_version(current), release())
    yield from diagnosis.health(current.client.run(calls.readiness()).checks)
    caller = _caller(current)
    yield diagnosis.key(caller) if isinstance(caller, Caller) else caller
    if isinstance(caller, Caller):
        yield from _fleet(current, caller)


def _connection(current: Session) -> Iterator[Finding]:
    client, before = current.client, datetime.now(UTC)
    with client.opened("/healthz") as response:
        # The connection may be closed as soon as the body is read.
        expires = _expiry(response)
        response.read()
        after = datetime.now(UTC)
        took = (after - before).total_seconds()
    if response.status_code != httpx.codes.OK:
        what = f"{client.url} returned {response.status_code} to GET /healthz"
        yield Finding(
            "reachable", Verdict.FAILED, what, "check the URL: another server may be listening there"
        )
        return
    yield Finding("reachable", Verdict.OK, f"{client.url} responds in {took * 1000:.1f} ms")
    yield diagnosis.tls(client.url, expires, after)
    if date := response.headers.get("date"):
        yield diagnosis.clock(parsedate_to_datetime(date), before, after)


def _expiry(response: httpx.Response) -> datetime | None:
    """Return when the verified certificate of the server expires; None without TLS."""
    found = response.extensions["network_stream"].get_extra_info("ssl_object")
    if found is None:
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(found.getpeercert()["notAfter"]), UTC)


class _Info(msgspec.Struct):
    version: str


class _Document(msgspec.Struct):
    info: _Info


def _version(current: Session) -> str | None:
    """Return the release of the control plane, None if it does not publish its OpenAPI document."""
    with current.client.opened("/openapi.json") as response:
        content = response.read()
    try:
        return msgspec.json.decode(content, type=_Document).info.version
    except msgspec.DecodeError:
        return None


def _caller(current: Session) -> Caller | Finding:
    try:
        return current.client.run(calls.whoami())
    except ApiProblem as refused:
        return _failed("key", failure_of(refused))


def _fleet(current: Session, caller: Caller) -> Iterator[Finding]:
    if "fleet:read" in caller.scopes and caller.projects is None:
        yield from diagnosis.fleet(current.client.run(calls.status()))
    else:
        yield Finding("nodes", Verdict.SKIPPED, "the key may not read the fleet")
    if "tasks:read" not in caller.scopes:
        yield Finding("queues", Verdict.SKIPPED, "the key may not read tasks")
        return
    listing = current.client.listing(calls.tasks(states=sorted(UNFINISHED)), _MOST_TASKS)
    tasks = [each.value for each in listing]
    yield diagnosis.queues(tasks, listing.next_cursor is not None, datetime.now(UTC))


def _failed(name: str, failure: Failure) -> Finding:
    reasons = "; ".join(each.message for each in failure.reasons) or failure.what
    return Finding(name, Verdict.FAILED, reasons, next(iter(failure.advice), None))
