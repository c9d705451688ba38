"""`sliceplane status`."""

import typer

from control_plane.cli.answers import Status, decode
from control_plane.cli.failures import NotReady
from control_plane.cli.options import AsJson
from control_plane.cli.pages import status as pages
from control_plane.cli.session import Session, session


def status(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Show whether the control plane works: its servers, its followers of the ledger, nodes, drift and tasks.

    The exit code is 0 only if every check is ok.
    """
    with session(context, json=as_json) as current:
        raw = _status(current)
        found = decode(raw, Status)
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.page(pages.status(found, current.client.url))
        if failed := [each.name for each in found.checks if each.status != "ok"]:
            raise NotReady(f"the control plane is not ready: {', '.join(failed)}")


def _status(current: Session) -> bytes:
    """Return the status, or only the checks if Postgres, which stores API keys, does not respond."""
    raw = current.client.probe("/readyz")
    postgres = (each.status for each in decode(raw, Status).checks if each.name == "postgres")
    return current.client.get("/v1/status") if "ok" in postgres else raw
