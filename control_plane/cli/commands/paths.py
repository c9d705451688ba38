"""Commands of `sliceplane paths`, which list the network paths between the parts of Sliceplane."""

import typer
from rich.console import RenderableType

from control_plane.cli.options import UnnamedOutput
from control_plane.cli.pages import paths as pages
from control_plane.cli.screen import Screen, UnnamedFormat
from control_plane.cli.session import session
from control_plane.client import calls
from control_plane.client.answers import ReachPath

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def group() -> None:
    """List the network paths between the parts of Sliceplane."""


@commands.command("list")
def list_paths(context: typer.Context, *, output: UnnamedOutput = UnnamedFormat.TABLE) -> None:
    """List every network path between the parts of Sliceplane: its transport, its credential, and security warnings."""
    with session(context, output) as current:
        current.show_list(calls.network_paths(), lambda found: _page(current.screen, found))


def _page(screen: Screen, found: list[ReachPath]) -> RenderableType:
    for warning, concerned in pages.warnings(found).items():
        screen.warn(f"{warning}  [{', '.join(concerned)}]")
    return pages.paths(found)
