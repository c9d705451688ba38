"""`sliceplane nodes`."""

from typing import Annotated

import typer

from control_plane.cli.answers import Drift, ExpectedNode, Node, decode
from control_plane.cli.moments import At, counted_from
from control_plane.cli.options import AsJson, NodeId, Why
from control_plane.cli.pages import details, tables
from control_plane.cli.paths import node_path
from control_plane.cli.request import public_address
from control_plane.cli.session import session

commands = typer.Typer(no_args_is_help=True)


@commands.command("list")
def list_nodes(context: typer.Context, *, at: At = None, as_json: AsJson = False) -> None:
    """All hosts, and when each was last heard of."""
    with session(context, json=as_json) as here:
        items = here.client.items("/v1/nodes", {"at": at})
        if as_json:
            here.screen.documents(items)
        else:
            here.screen.rows(tables.nodes((decode(item, Node) for item in items), then=at is not None))


@commands.command()
def show(context: typer.Context, *, node: NodeId, at: At = None, as_json: AsJson = False) -> None:
    """One host: its state, and what it lacks to carry slices."""
    with session(context, json=as_json) as here:
        raw = here.client.get(node_path(node), {"at": at})
        if as_json:
            here.screen.document(raw)
        else:
            here.screen.page(
                details.node(
                    decode(raw, Node), then=at is not None, now=counted_from(at, here.client.recorded)
                )
            )


@commands.command()
def drift(
    context: typer.Context,
    *,
    node: Annotated[str | None, typer.Argument(help="Only of this host.", show_default="all of them")] = None,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """What is otherwise on hosts and in their slots than it is wanted, and was not mended yet."""
    with session(context, json=as_json) as here:
        path = "/v1/drift" if node is None else node_path(node, "drift")
        items = here.client.items(path, {"at": at})
        if as_json:
            here.screen.documents(items)
        else:
            found = [decode(item, Drift) for item in items]
            here.screen.rows(tables.drift(found, counted_from(at, here.client.recorded)))


@commands.command()
def addresses(
    context: typer.Context,
    *,
    node: NodeId,
    address: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ADDRESS",
            help="Such as 203.0.113.7 (its ports 20000 to 29999), 203.0.113.7:443-443 or 203.0.113.7:whole.",
            show_default=False,
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Take all away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which public addresses a host has, all of them; name none to see them. They must lead there already."""
    if address and none:
        raise typer.BadParameter("name addresses, or say --none")
    body = {"addresses": [public_address(each) for each in address or []]}
    with session(context, json=as_json) as here:
        if address or none:
            raw = here.client.put(node_path(node, "public-addresses"), body)
        else:
            raw = here.client.get(node_path(node))
        if as_json:
            here.screen.document(raw)
        else:
            here.screen.page(details.addresses(decode(raw, Node)))


@commands.command()
def expect(context: typer.Context, *, node: NodeId, as_json: AsJson = False) -> None:
    """Admit a host by name. Prints its one-time enrolment token, which is shown only now.

    Repeated before the host enrols, it prints a new token and invalidates the earlier one.
    """
    with session(context, json=as_json) as here:
        raw = here.client.post("/v1/nodes", {"id": node})
        if as_json:
            here.screen.document(raw)
            return
        here.screen.page(details.expected(decode(raw, ExpectedNode)))
        here.screen.note(
            "the token is not stored and not shown again; give it to the host's sliceplane-agent"
        )


@commands.command()
def remove(context: typer.Context, *, node: NodeId, as_json: AsJson = False) -> None:
    """Remove the registration of a host that never enrolled. Its subnet is freed."""
    with session(context, json=as_json) as here:
        raw = here.client.delete(node_path(node))
        if as_json:
            here.screen.document(raw)
            return
        removed = decode(raw, Node)
        here.screen.page(details.node(removed, then=True))
        here.screen.note(f"the name {removed.id} and the subnet {removed.subnet} can be registered again")


@commands.command()
def revoke(context: typer.Context, *, node: NodeId, why: Why, as_json: AsJson = False) -> None:
    """Take a host's access away, at once. What it carries goes on; only a new enrolment lets it in again."""
    with session(context, json=as_json) as here:
        raw = here.client.post(node_path(node, "revoke"), {"why": why})
        if as_json:
            here.screen.document(raw)
        else:
            here.screen.page(details.node(decode(raw, Node)))


@commands.command()
def readmit(context: typer.Context, *, node: NodeId, why: Why, as_json: AsJson = False) -> None:
    """Readmit a node that was excluded from placement after failed bring-ups."""
    with session(context, json=as_json) as here:
        raw = here.client.post(node_path(node, "readmit"), {"why": why})
        if as_json:
            here.screen.document(raw)
        else:
            here.screen.page(details.node(decode(raw, Node)))
