"""`sliceplane skus`."""

import typer

from control_plane.cli.answers import Sku, decode
from control_plane.cli.options import AsJson
from control_plane.cli.pages import tables
from control_plane.cli.session import session

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def group() -> None:
    """List the slice sizes that can be requested."""


@commands.command("list")
def list_skus(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List the slice sizes that can be requested, with their images."""
    with session(context, json=as_json) as current:
        items = current.client.items("/v1/skus")
        if as_json:
            current.screen.documents(items)
        else:
            current.screen.rows(tables.skus(decode(item, Sku) for item in items))
