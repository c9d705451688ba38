"""`sliceplane paths`."""

import typer

from control_plane.cli.answers import ReachPath, decode
from control_plane.cli.options import AsJson
from control_plane.cli.pages import paths as pages
from control_plane.cli.session import session

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def group() -> None:
    """List the network paths between the parts of Sliceplane."""


@commands.command("list")
def list_paths(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List every network path between the parts of Sliceplane: its transport, its credential, and security warnings."""
    with session(context, json=as_json) as current:
        items = list(current.client.items("/v1/paths"))
        if as_json:
            current.screen.documents(items)
            return
        found = [decode(item, ReachPath) for item in items]
        current.screen.rows(pages.paths(found))
        for warning, concerned in pages.warnings(found).items():
            current.screen.warn(f"{warning}  [{', '.join(concerned)}]")
