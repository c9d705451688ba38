"""Command `sliceplane status`, which shows whether the control plane works."""

import typer

from control_plane.cli.failures import NotReady
from control_plane.cli.options import UnnamedOutput
from control_plane.cli.pages import status as pages
from control_plane.cli.screen import UnnamedFormat
from control_plane.cli.session import Session, session
from control_plane.client import calls
from control_plane.client.answers import Status
from control_plane.client.exchange import Reply


def status(context: typer.Context, *, output: UnnamedOutput = UnnamedFormat.TABLE) -> None:
    """Show whether the control plane works: its servers, its followers of the ledger, nodes, drift and tasks.

    The exit code is 0 only if every check is ok.
    """
    with session(context, output) as current:
        reply = _status(current)
        found = reply.value
        current.screen.one(reply, lambda found: pages.status(found, current.client.url))
        if failed := [each.name for each in found.checks if each.status != "ok"]:
            raise NotReady(f"the control plane is not ready: {', '.join(failed)}")


def _status(current: Session) -> Reply[Status]:
    """Return the status, or only the checks if Postgres, which stores API keys, does not respond."""
    if current.as_curl:
        return current.send(calls.status())
    reply = current.client.send(calls.readiness())
    postgres = (each.status for each in reply.value.checks if each.name == "postgres")
    return current.send(calls.status()) if "ok" in postgres else reply
