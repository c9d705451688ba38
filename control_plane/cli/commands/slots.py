"""`sliceplane slots`."""

from typing import Annotated

import msgspec
import typer

from control_plane.cli.answers import Slot, decode
from control_plane.cli.moments import At
from control_plane.cli.options import AsJson
from control_plane.cli.pages import tables
from control_plane.cli.paths import approval_path
from control_plane.cli.session import Session, session

commands = typer.Typer(no_args_is_help=True)


@commands.command("list")
def list_slots(
    context: typer.Context,
    *,
    node: Annotated[str | None, typer.Option(help="Only those of one node.", show_default=False)] = None,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """Places for slices: what each is, and who has it."""
    with session(context, json=as_json) as here:
        items = here.client.items("/v1/slots", {"node": node, "at": at})
        if as_json:
            here.screen.documents(items)
        else:
            here.screen.rows(tables.slots(decode(item, Slot) for item in items))


@commands.command()
def approve(
    context: typer.Context,
    *,
    slots: Annotated[list[str], typer.Argument(metavar="SLOT...", help="Such as lab-a/0.")],
    as_json: AsJson = False,
) -> None:
    """Let discovered slots be used. Reserves a MAC and an IP for each, for good."""
    for slot in slots:
        if not slot.rpartition("/")[0]:
            raise typer.BadParameter(f"{slot!r} is no slot; a slot is NODE/INDEX, such as lab-a/0")
    with session(context, json=as_json) as here:
        approved: list[msgspec.Raw] = []
        try:
            for slot in slots:
                approved += [msgspec.Raw(here.client.post(approval_path(slot)))]
        finally:
            _show(here, approved)


def _show(here: Session, approved: list[msgspec.Raw]) -> None:
    """Also after a refusal: the slots approved before it stay approved."""
    if here.screen.json:
        here.screen.documents(approved)
    elif approved:
        here.screen.rows(tables.slots(decode(item, Slot) for item in approved))
