"""Commands of `sliceplane slots`: list, show, approve, force-release, readmit, retire and reprovision slots."""

from typing import Annotated

import typer

from control_plane.cli.options import Output, Why
from control_plane.cli.pages import details, tables
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.cli.times import At, counted_from
from control_plane.client import calls
from control_plane.client.answers import Slot
from control_plane.client.exchange import Reply

commands = typer.Typer(no_args_is_help=True)


def _slot(given: str) -> str:
    if not given.rpartition("/")[0]:
        raise typer.BadParameter(f"{given!r} is not a slot; use NODE/INDEX, such as lab-a/0")
    return given


def _slots(given: list[str]) -> list[str]:
    return [_slot(each) for each in given]


SlotArgument = Annotated[
    str, typer.Argument(metavar="SLOT", help="Id of a slot, such as lab-a/0.", callback=_slot)
]


@commands.command("list")
def list_slots(
    context: typer.Context,
    *,
    node: Annotated[str | None, typer.Option(help="Only slots of this node.", show_default=False)] = None,
    at: At = None,
    output: Output = Format.TABLE,
) -> None:
    """List slots with their state, size, addresses and allocation."""
    with session(context, output) as current:
        current.show_list(calls.slots(node_name=node, at=at), tables.slots)


@commands.command()
def show(
    context: typer.Context,
    *,
    slot: SlotArgument,
    at: At = None,
    output: Output = Format.TABLE,
) -> None:
    """Show a slot: its state, its drift, and the facts about its PCI functions."""
    with session(context, output) as current:
        reply = current.send(calls.slot(slot, at=at))
        now = counted_from(at, current.recorded)
        current.screen.one(reply, lambda found: details.slot(found, now=now))


@commands.command()
def approve(
    context: typer.Context,
    *,
    slots: Annotated[
        list[str], typer.Argument(metavar="SLOT...", help="Ids of slots, such as lab-a/0.", callback=_slots)
    ],
    sku: Annotated[
        list[str] | None,
        typer.Option(
            help="Offer the slots under this SKU, also if they are approved already; repeat it for several SKUs."
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Approve discovered slots for use. Reserves a MAC and an IP address for each until it is reprovisioned.

    If the hardware of a free slot changed after its approval, approve it again, which accepts the hardware found.
    Without `--sku`, a new slot is offered under the SKU of the catalogue that uses most of it, and any other slot keeps
    its SKUs; the command is refused if one of them does not fit the hardware found.
    """
    with session(context, output) as current:
        approved: list[Reply[Slot]] = []
        try:
            approved.extend(current.each(*(calls.approve_slot(slot, sku or ()) for slot in slots)))
        finally:
            # Also after a refusal: the slots that were approved before it remain approved.
            if approved or (current.screen.machine and not current.as_curl):
                current.screen.many(approved, tables.slots)


@commands.command("force-release")
def force_release(
    context: typer.Context,
    *,
    slot: SlotArgument,
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """Force-release a slot that its node has not proved empty. It can be claimed again at once. The ledger
    records your name and the reason.
    """
    with session(context, output) as current:
        current.screen.many([current.send(calls.force_release_slot(slot, reason))], tables.slots)


@commands.command()
def readmit(
    context: typer.Context,
    *,
    slot: SlotArgument,
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """Readmit a slot that was excluded from placement after failed bring-ups."""
    with session(context, output) as current:
        current.screen.many([current.send(calls.readmit_slot(slot, reason))], tables.slots)


@commands.command()
def retire(
    context: typer.Context,
    *,
    slot: SlotArgument,
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """Retire a free slot. No slice is placed in it until it is approved again. It keeps its MAC and IP addresses."""
    with session(context, output) as current:
        current.screen.many([current.send(calls.retire_slot(slot, reason))], tables.slots)


@commands.command()
def reprovision(
    context: typer.Context,
    *,
    slot: SlotArgument,
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """Give a free slot another MAC and another IP address. The next slice in the slot has them."""
    with session(context, output) as current:
        current.screen.many([current.send(calls.reprovision_slot(slot, reason))], tables.slots)
