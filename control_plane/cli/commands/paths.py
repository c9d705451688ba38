"""`sliceplane paths`."""

import typer

from control_plane.cli.answers import ReachPath, decode
from control_plane.cli.options import AsJson
from control_plane.cli.pages import paths as pages
from control_plane.cli.session import session

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def group() -> None:
    """Who reaches what, and how."""


@commands.command("list")
def list_paths(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Every path between the parts: its transport, its credential, and what of it should be mended."""
    with session(context, json=as_json) as here:
        items = list(here.client.items("/v1/paths"))
        if as_json:
            here.screen.documents(items)
            return
        found = [decode(item, ReachPath) for item in items]
        here.screen.rows(pages.paths(found))
        for warning, concerned in pages.warnings(found).items():
            here.screen.warn(f"{warning}  [{', '.join(concerned)}]")
