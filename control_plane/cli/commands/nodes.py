"""`sliceplane nodes`."""

from typing import Annotated

import typer

from control_plane.cli.options import NodeId, Output, UnnamedOutput, Why
from control_plane.cli.pages import details, tables
from control_plane.cli.request import public_address
from control_plane.cli.screen import Format, UnnamedFormat
from control_plane.cli.session import session
from control_plane.cli.times import At, counted_from
from control_plane.client import calls
from control_plane.client.bodies import NodeAddresses

commands = typer.Typer(no_args_is_help=True)


@commands.command("list")
def list_nodes(context: typer.Context, *, at: At = None, output: Output = Format.TABLE) -> None:
    """List all nodes with their state and last heartbeat."""
    with session(context, output) as current:
        current.show_list(calls.nodes(at=at), lambda found: tables.nodes(found, then=at is not None))


@commands.command()
def show(context: typer.Context, *, node: NodeId, at: At = None, output: Output = Format.TABLE) -> None:
    """Show a node: its state, its drift, and what it lacks to carry slices."""
    with session(context, output) as current:
        reply = current.send(calls.node(node, at=at))
        now = counted_from(at, current.recorded)
        current.screen.one(reply, lambda found: details.node(found, then=at is not None, now=now))


@commands.command()
def drift(
    context: typer.Context,
    *,
    node: Annotated[
        str | None, typer.Argument(help="Only drift of this node.", show_default="all nodes")
    ] = None,
    at: At = None,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """List open drift: differences between the desired and the observed state of nodes and their slots."""
    with session(context, output) as current:
        current.show_list(
            calls.drift(node, at=at),
            lambda found: tables.drift(found, counted_from(at, current.recorded)),
        )


@commands.command()
def addresses(
    context: typer.Context,
    *,
    node: NodeId,
    address: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ADDRESS",
            help="Public address: 203.0.113.7 (ports 20000 to 29999), 203.0.113.7:443-443 or 203.0.113.7:whole.",
            show_default=False,
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove all addresses.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Replace the public addresses of a node, or show them if none is given. They must be routed to the host
    already.
    """
    if address and none:
        raise typer.BadParameter(
            "addresses and --none cannot be combined; specify either addresses or --none"
        )
    body = NodeAddresses(addresses=[public_address(each) for each in address or []])
    with session(context, output) as current:
        call = calls.set_public_addresses(node, body) if address or none else calls.node(node)
        current.screen.one(current.send(call), details.addresses)


@commands.command()
def register(context: typer.Context, *, node: NodeId, output: Output = Format.TABLE) -> None:
    """Register a node by name. Prints its one-time enrolment token, which is shown only once.

    If repeated before the node enrols, it prints a new token and invalidates the earlier one.
    """
    with session(context, output) as current:
        current.screen.one(current.send(calls.register_node(node)), details.registered)
        current.screen.note(
            "the token is not stored and not shown again; pass it to the sliceplane-agent of the host"
        )


@commands.command()
def remove(context: typer.Context, *, node: NodeId, output: Output = Format.TABLE) -> None:
    """Remove the registration of a node that never enrolled. Its subnet is freed."""
    with session(context, output) as current:
        reply = current.send(calls.remove_node(node))
        removed = reply.value
        current.screen.one(reply, lambda found: details.node(found, then=True))
        current.screen.note(f"the name {removed.id} and the subnet {removed.subnet} can be registered again")


@commands.command()
def revoke(context: typer.Context, *, node: NodeId, reason: Why, output: Output = Format.TABLE) -> None:
    """Revoke the access of a node at once. Its slices continue to run; it needs a new enrolment to regain access."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.revoke_node(node, reason)), details.node)


@commands.command()
def readmit(context: typer.Context, *, node: NodeId, reason: Why, output: Output = Format.TABLE) -> None:
    """Readmit a node that was excluded from placement after failed bring-ups."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.readmit_node(node, reason)), details.node)
