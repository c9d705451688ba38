"""Page of the control plane's status: each check, and counts of what needs attention with the command that lists it."""

from collections.abc import Iterator, Mapping

from rich.table import Table
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, page
from control_plane.client.answers import HealthCheck, Status


def status(found: Status, url: str) -> Table:
    return page(_status(found, url))


def _status(found: Status, url: str) -> Iterator[Row]:
    word = Text("ready", "green") if found.status == "ready" else Text(found.status.replace("_", " "), "red")
    yield "control plane", Text.assemble(word, (f"  {url}", "dim"))
    for check in found.checks:
        yield check.name, _check(check)
    if found.nodes is not None:
        yield "nodes", _counted(found.nodes, "none", "sliceplane nodes list")
    if found.slots is not None:
        yield "slots", _counted(found.slots, "none", "sliceplane slots list")
    if found.blocked_slots is not None and (reasons := found.blocked_slots.by_reason):
        counted = _counted(reasons, "none", "sliceplane slots list")
        yield "blocked slots", Text.assemble(f"{sum(reasons.values())} of the free slots: ", counted)
    if found.drift is not None:
        drift = {"open": found.drift.open, "blocking placement": found.drift.blocking}
        yield "drift", _counted(drift, "none", "sliceplane nodes drift")
    if found.tasks is not None:
        yield (
            "tasks",
            _counted(found.tasks, "no failed task, no parked stream", "sliceplane tasks list --state failed"),
        )
    for name in found.failing_sinks:
        yield "sink of heads", Text.assemble(("failed", "red"), f"  {name}  > sliceplane audit sinks")


def _check(check: HealthCheck) -> Text:
    ok = check.status == "ok"
    figures = ", ".join(_figures(check))
    if ok:
        return Text.assemble(("ok", "green"), f"  {figures}")
    return Text.assemble((check.status, "red"), f"  {check.message}", f" ({figures})" if figures else "")


def _figures(check: HealthCheck) -> Iterator[str]:
    if check.latency_ms is not None:
        yield f"responds in {check.latency_ms} ms"
    if check.leads:
        yield "a process leads"
    if check.behind:
        yield f"{check.behind} positions behind"
    if check.lag_seconds is not None:
        yield f"lag {words.span(check.lag_seconds)}"


def _counted(numbers: Mapping[str, int], nothing: str, command: str) -> Text:
    counts = ", ".join(f"{number} {name}" for name, number in numbers.items() if number)
    return Text.assemble(counts, (f"  > {command}", "dim")) if counts else Text(nothing)
