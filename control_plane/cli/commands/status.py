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
    with session(context, json=as_json) as here:
        raw = _status(here)
        found = decode(raw, Status)
        if as_json:
            here.screen.document(raw)
        else:
            here.screen.page(pages.status(found, here.client.url))
        if failed := [each.name for each in found.checks if each.status != "ok"]:
            raise NotReady(f"the control plane is not ready: {', '.join(failed)}")


def _status(here: Session) -> bytes:
    """Return the status, or only the checks if Postgres, which stores API keys, does not answer."""
    raw = here.client.probe("/readyz")
    postgres = (each.status for each in decode(raw, Status).checks if each.name == "postgres")
    return here.client.get("/v1/status") if "ok" in postgres else raw
