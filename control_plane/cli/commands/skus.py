"""`sliceplane skus`."""

import typer

from control_plane.cli.answers import Sku, decode
from control_plane.cli.options import AsJson
from control_plane.cli.pages import tables
from control_plane.cli.session import session

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def group() -> None:
    """Sizes that can be asked for."""


@commands.command("list")
def list_skus(context: typer.Context, *, as_json: AsJson = False) -> None:
    """What can be asked for."""
    with session(context, json=as_json) as here:
        items = here.client.items("/v1/skus")
        if as_json:
            here.screen.documents(items)
        else:
            here.screen.rows(tables.skus(decode(item, Sku) for item in items))
