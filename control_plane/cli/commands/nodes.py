"""Commands of `sliceplane nodes`: register, list, show, configure, cordon, drain and revoke nodes."""

from typing import Annotated, Final

import typer
from msgspec import UNSET

from control_plane.cli.failures import NotReached
from control_plane.cli.options import NodeId, Output, Timeout, UnnamedOutput, Why
from control_plane.cli.pages import details, tables
from control_plane.cli.request import public_address, seconds
from control_plane.cli.screen import Format, UnnamedFormat
from control_plane.cli.session import Session, session
from control_plane.cli.times import At, counted_from
from control_plane.cli.waiting import continuing, polled
from control_plane.client import calls
from control_plane.client.answers import Drain, Node, RegisteredNode
from control_plane.client.bodies import ConfigureNode, DrainNode, MacRange, NodeAddresses
from control_plane.client.exchange import Call, Reply

commands = typer.Typer(no_args_is_help=True)
_POOL: Final = "02:00:5e:00:00:00-02:00:5e:00:ff:ff"


def _release_after(given: str) -> int:
    return 0 if given == "now" else seconds(given, "--release-after")


@commands.command("list")
def list_nodes(
    context: typer.Context,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only nodes in this state, such as unreachable; repeatable.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Only nodes with an id that begins with this text.", show_default=False
        ),
    ] = None,
    cordoned: Annotated[
        bool | None,
        typer.Option(
            "--cordoned/--not-cordoned",
            help="Only nodes that are cordoned, or that are not.",
            show_default=False,
        ),
    ] = None,
    excluded: Annotated[
        bool | None,
        typer.Option(
            "--excluded/--not-excluded",
            help="Only nodes that are excluded from placement after failed bring-ups, or that are not.",
            show_default=False,
        ),
    ] = None,
    drift: Annotated[
        bool | None,
        typer.Option(
            "--drift/--no-drift",
            help="Only nodes with open drift, of the node or of one of its slots, or without.",
            show_default=False,
        ),
    ] = None,
    at: At = None,
    output: Output = Format.TABLE,
) -> None:
    """List nodes with their state and last heartbeat: all, or those that match every filter."""
    call = calls.nodes(
        states=state, name_prefix=name, cordoned=cordoned, excluded=excluded, drift=drift, at=at
    )
    filtered = bool(state) or (name, cordoned, excluded, drift) != (None,) * 4
    with session(context, output) as current:
        current.show_list(call, lambda found: tables.nodes(found, then=at is not None, filtered=filtered))


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
def configure(
    context: typer.Context,
    *,
    node: NodeId,
    bridge: Annotated[
        str, typer.Option(help="Bridge of the node, as in the settings of its agent.")
    ] = "br-slice",
    l2_domain: Annotated[
        str, typer.Option(help="Layer-2 domain, in which MAC addresses are unique.")
    ] = "default",
    mac_pool: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST-LAST",
            help="Pool of MAC addresses for the slots. Without it, they are derived from the ids of the slots.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Replace the network settings of a node, which its slots get when they are approved. The bridge and the layer-2
    domain can change only while no slot has addresses.
    """
    first, _, last = (mac_pool or "").partition("-")
    if mac_pool and not last:
        raise typer.BadParameter(f"{mac_pool!r} is not a pool; use FIRST-LAST, such as {_POOL}")
    pool = MacRange(first=first, last=last) if mac_pool else None
    body = ConfigureNode(bridge=bridge, l2_domain=l2_domain, mac_pool=pool)
    with session(context, output) as current:
        current.screen.one(current.send(calls.configure_node(node, body)), details.node)


@commands.command()
def register(context: typer.Context, *, node: NodeId, output: Output = Format.TABLE) -> None:
    """Register a node by name. Prints its one-time enrolment token, which is shown only once.

    If repeated before the node enrols, it prints a new token and invalidates the earlier one.
    """
    with session(context, output) as current:
        _show_token(current, calls.register_node(node))


@commands.command("reopen-enrolment")
def reopen_enrolment(context: typer.Context, *, node: NodeId, output: Output = Format.TABLE) -> None:
    """Let a node enrol again: after its token was used or lost, its disk was lost, or its access was revoked.

    Prints a new one-time enrolment token, which is shown only once, and invalidates the earlier one. The present access
    of the node ends when it enrols again.
    """
    with session(context, output) as current:
        _show_token(current, calls.reopen_enrolment(node))


def _show_token(current: Session, call: Call[RegisteredNode]) -> None:
    current.screen.one(current.send(call), details.registered)
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
def cordon(context: typer.Context, *, node: NodeId, reason: Why, output: Output = Format.TABLE) -> None:
    """Close a node for new placements. Slices that run there stay."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.cordon_node(node, reason)), details.node)


@commands.command()
def uncordon(context: typer.Context, *, node: NodeId, reason: Why, output: Output = Format.TABLE) -> None:
    """Open a cordoned node for placements again. A running drain of the node is cancelled."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.uncordon_node(node, reason)), details.node)


@commands.command()
def drain(
    context: typer.Context,
    *,
    node: NodeId,
    reason: Why,
    release_after: Annotated[
        int | None,
        typer.Option(
            metavar="TIME",
            parser=_release_after,
            help="Release the allocations that still hold slots of the node after this time, such as 30m, or now.",
            show_default="the drain waits until they end",
        ),
    ] = None,
    wait_for_it: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the drain has ended.")
    ] = False,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> None:
    """Cordon a node and empty it. The node stays cordoned after the drain.

    Another drain while one runs changes the time of the release. With --wait, the exit code is 5 if the node is not
    empty at the end of the drain.
    """
    body = DrainNode(reason=reason, release_after_seconds=UNSET if release_after is None else release_after)
    with session(context, output) as current:
        reply = current.send(calls.drain_node(node, body))
        if wait_for_it:
            reply = _drained(current, node, timeout)
        current.screen.one(reply, details.node)
        drained = reply.value.drain
        if wait_for_it and (drained is None or drained.outcome != "empty"):
            raise NotReached(f"node {node} is not empty: {_ending(drained)}")


def _ending(drained: Drain | None) -> str:
    if drained is None:
        return "its drain was cancelled"
    return f"its drain ended {drained.outcome}, and {len(drained.remaining)} slots remain"


def _drained(current: Session, node: str, timeout: float | None) -> Reply[Node]:
    """Wait until the drain of a node has ended or was cancelled, and return the reply with the node."""
    advice = f"show the drain: sliceplane nodes show {node}"
    with continuing(f"the drain of node {node}", advice, doing="waiting"):
        for reply in polled(current, calls.node(node), timeout):
            drained = reply.value.drain
            if drained is None or drained.outcome is not None:
                return reply
    raise AssertionError("the polling of a drain must end with the end of the drain or an error")


@commands.command()
def readmit(context: typer.Context, *, node: NodeId, reason: Why, output: Output = Format.TABLE) -> None:
    """Readmit a node that was excluded from placement after failed bring-ups."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.readmit_node(node, reason)), details.node)
