"""The evaluation of the checks of `sliceplane doctor`. Pure functions: each gets measured values, and returns findings
with advice.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from control_plane.cli.pages import words
from control_plane.client.access_answers import Caller
from control_plane.client.answers import HealthCheck, Status, Task

_CLOCK_WARNING: Final = 2.0
"""Clock difference in seconds that causes a warning, because times relative to this machine, such as `10m ago`, are
then wrong.
"""
_CLOCK_FAILED: Final = 60.0
_CERTIFICATE_WARNING_DAYS: Final = 14
_LAG_WARNING: Final = 5.0
"""Lag in seconds of a follower of the ledger that causes a warning. The control plane itself reports a failure if the
lag is above 30 s.
"""
_OLD_TASK: Final = 60.0
"""Age in seconds at which an unfinished task causes a warning, because it is a sign of a growing queue."""


class Verdict(StrEnum):
    """Result of one check. `skipped`: the check does not apply, or the key may not read what it needs."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Finding(msgspec.Struct, frozen=True):
    """One line of the diagnosis. `advice` is what to do, None if there is nothing to do."""

    name: str
    status: Verdict
    message: str
    advice: str | None = None


def clock(server: datetime, before: datetime, after: datetime) -> Finding:
    """Return the finding about the clock difference: the time in a response, compared with the local time before the
    request and after the response.

    The header Date has whole seconds, so that it may be a second behind the clock of the server.
    """
    behind, ahead = (before - server).total_seconds() - 1, (server - after).total_seconds()
    difference = max(behind, ahead, 0.0)
    if difference < _CLOCK_WARNING:
        return Finding("clock", Verdict.OK, "agrees with that of the control plane")
    where = "behind" if ahead > behind else "ahead of"
    status = Verdict.WARNING if difference < _CLOCK_FAILED else Verdict.FAILED
    what = f"this machine is {words.span(difference)} {where} the control plane"
    return Finding("clock", status, what, "set the clocks by NTP, such as with chrony")


def tls(url: str, expires: datetime | None, now: datetime) -> Finding:
    """Return the finding about the transport encryption. `expires` is when the verified certificate expires; None
    without TLS.
    """
    if expires is None:
        local = url.startswith(("http://127.", "http://localhost", "http://[::1]"))
        if local:
            return Finding("tls", Verdict.SKIPPED, "plain HTTP on this machine")
        what = "plain HTTP: the API key crosses the network in plaintext"
        return Finding("tls", Verdict.WARNING, what, "use an https:// URL")
    left = (expires - now).total_seconds()
    what = f"the certificate is verified, and expires {words.until(expires, now)}"
    if left < _CERTIFICATE_WARNING_DAYS * 86400:
        return Finding("tls", Verdict.WARNING, what, "renew the certificate of the control plane")
    return Finding("tls", Verdict.OK, what)


def version(server: str | None, client: str) -> Finding:
    """Return the finding about the releases of the control plane and this client. Releases of one minor version are
    compatible.
    """
    if server is None:
        return Finding("version", Verdict.SKIPPED, "the control plane does not publish its version")
    what = f"control plane {server}, this client {client}"
    if _minor(server) == _minor(client):
        return Finding("version", Verdict.OK, what)
    return Finding("version", Verdict.WARNING, what, "install the client of the same release")


def _minor(release: str) -> list[str]:
    return release.partition("+")[0].split(".")[:2]


def key(caller: Caller) -> Finding:
    """Return the finding about the API key that the control plane has accepted: its actor, role and projects."""
    projects = (
        "all projects" if caller.projects is None else f"projects {', '.join(caller.projects) or 'none'}"
    )
    return Finding("key", Verdict.OK, f"{caller.actor}, role {caller.role}, {projects}")


def health(checks: Sequence[HealthCheck]) -> Iterator[Finding]:
    """Yield a finding for each health check of the control plane, with the lag of its followers of the ledger."""
    for check in checks:
        lag = "" if check.lag_seconds is None else f"lag {words.span(check.lag_seconds)}"
        if check.status != "ok":
            yield Finding(check.name, Verdict.FAILED, check.message, "see the log of the control plane")
        elif check.lag_seconds is not None and check.lag_seconds > _LAG_WARNING:
            yield Finding(check.name, Verdict.WARNING, lag, "watch whether it grows: sliceplane status")
        else:
            yield Finding(check.name, Verdict.OK, lag or check.message)


def fleet(status: Status) -> Iterator[Finding]:
    """Yield findings about nodes, drift and failed tasks."""
    nodes = status.nodes or {}
    count = f"{sum(nodes.values())} nodes"
    if unreachable := nodes.get("unreachable", 0):
        what = f"{unreachable} of {count} unreachable"
        yield Finding("nodes", Verdict.WARNING, what, "find them: sliceplane nodes list --state unreachable")
    else:
        yield Finding("nodes", Verdict.OK, f"{count}, none unreachable")
    if status.drift is not None and status.drift.open:
        what = f"{status.drift.open} open, {status.drift.blocking} blocking placement"
        yield Finding("drift", Verdict.WARNING, what, "list it: sliceplane nodes drift")
    else:
        yield Finding("drift", Verdict.OK, "none")
    failed = {name: number for name, number in (status.tasks or {}).items() if number}
    if failed:
        what = ", ".join(f"{number} {name}" for name, number in failed.items())
        advice = "list them: sliceplane tasks list --state failed; sliceplane tasks parked"
        yield Finding("tasks", Verdict.WARNING, what, advice)
    else:
        yield Finding("tasks", Verdict.OK, "no failed task, no parked stream")


def queues(unfinished: Sequence[Task], more: bool, now: datetime) -> Finding:  # noqa: FBT001, one of three facts
    """Return the finding about the tasks that no node has finished. `more` is whether further unfinished tasks exist
    than those given.
    """
    if not unfinished:
        return Finding("queues", Verdict.OK, "no unfinished task")
    oldest = max((now - task.created_at).total_seconds() for task in unfinished)
    what = (
        f"{len(unfinished)}{' or more' if more else ''} unfinished tasks, the oldest for {words.span(oldest)}"
    )
    if oldest < _OLD_TASK and not more:
        return Finding("queues", Verdict.OK, what)
    advice = "list them: sliceplane tasks list --state due --state sent --state waiting"
    return Finding("queues", Verdict.WARNING, what, advice)
