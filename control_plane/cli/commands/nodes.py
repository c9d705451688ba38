"""`sliceplane nodes`."""

from typing import Annotated

import typer

from control_plane.cli.answers import Drift, Node, RegisteredNode, decode
from control_plane.cli.options import AsJson, NodeId, Why
from control_plane.cli.pages import details, tables
from control_plane.cli.paths import node_path
from control_plane.cli.request import public_address
from control_plane.cli.session import session
from control_plane.cli.times import At, counted_from

commands = typer.Typer(no_args_is_help=True)


@commands.command("list")
def list_nodes(context: typer.Context, *, at: At = None, as_json: AsJson = False) -> None:
    """List all nodes with their state and last heartbeat."""
    with session(context, json=as_json) as current:
        items = current.client.items("/v1/nodes", {"at": at})
        if as_json:
            current.screen.documents(items)
        else:
            current.screen.rows(tables.nodes((decode(item, Node) for item in items), then=at is not None))


@commands.command()
def show(context: typer.Context, *, node: NodeId, at: At = None, as_json: AsJson = False) -> None:
    """Show a node: its state, its drift, and what it lacks to carry slices."""
    with session(context, json=as_json) as current:
        raw = current.client.get(node_path(node), {"at": at})
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.page(
                details.node(
                    decode(raw, Node), then=at is not None, now=counted_from(at, current.client.recorded)
                )
            )


@commands.command()
def drift(
    context: typer.Context,
    *,
    node: Annotated[
        str | None, typer.Argument(help="Only drift of this node.", show_default="all nodes")
    ] = None,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """List open drift: differences between the desired and the observed state of nodes and their slots."""
    with session(context, json=as_json) as current:
        path = "/v1/drift" if node is None else node_path(node, "drift")
        items = current.client.items(path, {"at": at})
        if as_json:
            current.screen.documents(items)
        else:
            found = [decode(item, Drift) for item in items]
            current.screen.rows(tables.drift(found, counted_from(at, current.client.recorded)))


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
    as_json: AsJson = False,
) -> None:
    """Replace the public addresses of a node, or show them if none is given. They must be routed to the host
    already.
    """
    if address and none:
        raise typer.BadParameter("specify addresses or --none, not both")
    body = {"addresses": [public_address(each) for each in address or []]}
    with session(context, json=as_json) as current:
        if address or none:
            raw = current.client.put(node_path(node, "public-addresses"), body)
        else:
            raw = current.client.get(node_path(node))
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.page(details.addresses(decode(raw, Node)))


@commands.command()
def register(context: typer.Context, *, node: NodeId, as_json: AsJson = False) -> None:
    """Register a node by name. Prints its one-time enrolment token, which is shown only once.

    If repeated before the node enrols, it prints a new token and invalidates the earlier one.
    """
    with session(context, json=as_json) as current:
        raw = current.client.post("/v1/nodes", {"id": node})
        if as_json:
            current.screen.document(raw)
            return
        current.screen.page(details.registered(decode(raw, RegisteredNode)))
        current.screen.note(
            "the token is not stored and not shown again; pass it to the sliceplane-agent of the host"
        )


@commands.command()
def remove(context: typer.Context, *, node: NodeId, as_json: AsJson = False) -> None:
    """Remove the registration of a node that never enrolled. Its subnet is freed."""
    with session(context, json=as_json) as current:
        raw = current.client.delete(node_path(node))
        if as_json:
            current.screen.document(raw)
            return
        removed = decode(raw, Node)
        current.screen.page(details.node(removed, then=True))
        current.screen.note(f"the name {removed.id} and the subnet {removed.subnet} can be registered again")


@commands.command()
def revoke(context: typer.Context, *, node: NodeId, reason: Why, as_json: AsJson = False) -> None:
    """Revoke the access of a node at once. Its slices continue to run; it needs a new enrolment to regain access."""
    with session(context, json=as_json) as current:
        raw = current.client.post(node_path(node, "revoke"), {"reason": reason})
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.page(details.node(decode(raw, Node)))


@commands.command()
def readmit(context: typer.Context, *, node: NodeId, reason: Why, as_json: AsJson = False) -> None:
    """Readmit a node that was excluded from placement after failed bring-ups."""
    with session(context, json=as_json) as current:
        raw = current.client.post(node_path(node, "readmit"), {"reason": reason})
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.page(details.node(decode(raw, Node)))
