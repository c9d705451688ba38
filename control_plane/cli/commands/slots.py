"""`sliceplane slots`."""

from typing import Annotated

import msgspec
import typer

from control_plane.cli.answers import Slot, decode
from control_plane.cli.options import AsJson, Why
from control_plane.cli.pages import tables
from control_plane.cli.paths import slot_path
from control_plane.cli.session import Session, session
from control_plane.cli.times import At

commands = typer.Typer(no_args_is_help=True)


def _slot(given: str) -> str:
    if not given.rpartition("/")[0]:
        raise typer.BadParameter(f"{given!r} is not a slot; use NODE/INDEX, such as lab-a/0")
    return given


def _slots(given: list[str]) -> list[str]:
    return [_slot(each) for each in given]


@commands.command("list")
def list_slots(
    context: typer.Context,
    *,
    node: Annotated[str | None, typer.Option(help="Only slots of this node.", show_default=False)] = None,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """List slots with their state, size, addresses and allocation."""
    with session(context, json=as_json) as current:
        items = current.client.items("/v1/slots", {"node": node, "at": at})
        if as_json:
            current.screen.documents(items)
        else:
            current.screen.rows(tables.slots(decode(item, Slot) for item in items))


@commands.command()
def approve(
    context: typer.Context,
    *,
    slots: Annotated[
        list[str], typer.Argument(metavar="SLOT...", help="Ids of slots, such as lab-a/0.", callback=_slots)
    ],
    as_json: AsJson = False,
) -> None:
    """Approve discovered slots for use. Reserves a MAC and an IP address for each permanently."""
    with session(context, json=as_json) as current:
        approved: list[msgspec.Raw] = []
        try:
            for slot in slots:
                approved += [msgspec.Raw(current.client.post(slot_path(slot, "approve")))]
        finally:
            # Also after a refusal: the slots that were approved before it remain approved.
            _show(current, approved)


@commands.command("force-release")
def force_release(
    context: typer.Context,
    *,
    slot: Annotated[
        str, typer.Argument(metavar="SLOT", help="Id of a slot, such as lab-a/0.", callback=_slot)
    ],
    reason: Why,
    as_json: AsJson = False,
) -> None:
    """Force-release a slot that its node has not proved empty. It can be claimed again at once. The ledger
    records your name and the reason.
    """
    with session(context, json=as_json) as current:
        _show(
            current, [msgspec.Raw(current.client.post(slot_path(slot, "force-release"), {"reason": reason}))]
        )


@commands.command()
def readmit(
    context: typer.Context,
    *,
    slot: Annotated[
        str, typer.Argument(metavar="SLOT", help="Id of a slot, such as lab-a/0.", callback=_slot)
    ],
    reason: Why,
    as_json: AsJson = False,
) -> None:
    """Readmit a slot that was excluded from placement after failed bring-ups."""
    with session(context, json=as_json) as current:
        _show(current, [msgspec.Raw(current.client.post(slot_path(slot, "readmit"), {"reason": reason}))])


def _show(current: Session, slots: list[msgspec.Raw]) -> None:
    if current.screen.json:
        current.screen.documents(slots)
    elif slots:
        current.screen.rows(tables.slots(decode(item, Slot) for item in slots))
