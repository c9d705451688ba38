"""Commands of `sliceplane consoles`: list, open and cut console sessions of admins."""

from typing import Annotated

import typer

from control_plane.cli import console_relay
from control_plane.cli.failures import Refused
from control_plane.cli.options import Output, Why
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.client import calls
from control_plane.client.bodies import NewConsole

commands = typer.Typer(no_args_is_help=True)
_Allocation = Annotated[str, typer.Argument(metavar="ALLOCATION", help="Id of an allocation.")]
_Slot = Annotated[int, typer.Option(min=0, max=63, help="Slot of the allocation, counted from 0.")]


@commands.command("list")
def list_consoles(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List the open console sessions of admins, oldest first."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.consoles()), pages.consoles)


@commands.command()
def terminal(
    context: typer.Context,
    *,
    name: _Allocation,
    slot: _Slot = 0,
) -> None:
    """Use the serial console of a slice in this terminal, also if its network does not work. Ctrl-] ends the session.

    The start and the end of the session are recorded; what is typed is not.
    """
    with session(context, Format.TABLE) as current:
        console_relay.refuse_without_terminal()
        ticket = current.send(calls.request_console(name, NewConsole(slot=slot))).value
        current.screen.note(f"serial console of {ticket.slot_id}; Ctrl-] ends the session")
        with console_relay.connected(current.access, ticket) as stream:
            reason = console_relay.run_in_terminal(stream)
        if reason:
            raise Refused(f"the session has ended: {reason}")


@commands.command()
def display(
    context: typer.Context,
    *,
    name: _Allocation,
    slot: _Slot = 0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for the viewer; 0: any free port.")] = 0,
    shared: Annotated[
        bool, typer.Option("--shared", help="Also if the display is open in another session.")
    ] = False,
) -> None:
    """Wait for a VNC viewer on a port of this machine, and connect it with the display of a slice.

    The first program of this machine that connects gets the display, and no other one. The start and the end of the
    session are recorded.
    """
    with session(context, Format.TABLE) as current, console_relay.listening(port) as server:
        found = server.getsockname()[1]
        current.screen.note(f"connect a VNC viewer with 127.0.0.1:{found}; Ctrl-C ends the session")
        viewer, _ = server.accept()
        # No other program can connect, and the ticket is new: it is valid for 30 seconds only.
        server.close()
        body = NewConsole(slot=slot, kind="graphics", shared=shared)
        with viewer:
            ticket = current.send(calls.request_console(name, body)).value
            with console_relay.connected(current.access, ticket) as stream:
                reason = console_relay.run_for_viewer(stream, viewer)
        if reason:
            raise Refused(f"the session has ended: {reason}")


@commands.command()
def cut(
    context: typer.Context,
    *,
    name: Annotated[
        str, typer.Argument(metavar="CONSOLE", help="Id of a console session, as `consoles list` shows it.")
    ],
    reason: Why,
    output: Output = Format.TABLE,
) -> None:
    """Cut a console session. Its connection ends within a second, and an unused ticket is refused at once."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.cut_console(name, reason)), pages.cut_console)
