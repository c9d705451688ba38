"""`sliceplane slots`."""

from typing import Annotated

import msgspec
import typer

from control_plane.cli.answers import Slot, decode
from control_plane.cli.moments import At
from control_plane.cli.options import AsJson, Why
from control_plane.cli.pages import tables
from control_plane.cli.paths import slot_path
from control_plane.cli.session import Session, session

commands = typer.Typer(no_args_is_help=True)


def _slot(given: str) -> str:
    if not given.rpartition("/")[0]:
        raise typer.BadParameter(f"{given!r} is no slot; a slot is NODE/INDEX, such as lab-a/0")
    return given


def _slots(given: list[str]) -> list[str]:
    return [_slot(each) for each in given]


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
    slots: Annotated[list[str], typer.Argument(metavar="SLOT...", help="Such as lab-a/0.", callback=_slots)],
    as_json: AsJson = False,
) -> None:
    """Let discovered slots be used. Reserves a MAC and an IP for each, for good."""
    with session(context, json=as_json) as here:
        approved: list[msgspec.Raw] = []
        try:
            for slot in slots:
                approved += [msgspec.Raw(here.client.post(slot_path(slot, "approve")))]
        finally:
            # Also after a refusal: the slots approved before it stay approved.
            _show(here, approved)


@commands.command("break-glass")
def break_glass(
    context: typer.Context,
    *,
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="Such as lab-a/0.", callback=_slot)],
    why: Why,
    as_json: AsJson = False,
) -> None:
    """Free a slot that its node does not prove empty. Somebody else may get it at once; the record keeps who did it."""
    with session(context, json=as_json) as here:
        _show(here, [msgspec.Raw(here.client.post(slot_path(slot, "break-glass"), {"why": why}))])


@commands.command()
def readmit(
    context: typer.Context,
    *,
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="Such as lab-a/0.", callback=_slot)],
    why: Why,
    as_json: AsJson = False,
) -> None:
    """Readmit a slot that was excluded from placement after failed bring-ups."""
    with session(context, json=as_json) as here:
        _show(here, [msgspec.Raw(here.client.post(slot_path(slot, "readmit"), {"why": why}))])


def _show(here: Session, slots: list[msgspec.Raw]) -> None:
    if here.screen.json:
        here.screen.documents(slots)
    elif slots:
        here.screen.rows(tables.slots(decode(item, Slot) for item in slots))
