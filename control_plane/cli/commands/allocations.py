"""`sliceplane allocations`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from control_plane.cli.answers import Allocation, Event, Ingress, Node, decode
from control_plane.cli.commands.events import show_events
from control_plane.cli.failures import NotReached
from control_plane.cli.follow import Follower
from control_plane.cli.moments import At, counted_from
from control_plane.cli.options import After, AllocationId, AsJson
from control_plane.cli.pages import details, event_line, tables
from control_plane.cli.paths import allocation_path, ingress_path, node_path
from control_plane.cli.request import labels, seconds, ssh_keys, way_in
from control_plane.cli.session import Session, session
from control_plane.cli.story import Story
from control_plane.cli.waiting import wait

commands = typer.Typer(no_args_is_help=True)
_ENDS: Final = frozenset({"releasing", "failed", "released"})


@commands.command()
def create(
    context: typer.Context,
    *,
    sku: Annotated[str, typer.Option(help="Size to ask for; `sliceplane skus list` shows them.")],
    image: Annotated[str | None, typer.Option(help="System to boot.", show_default="the lab's")] = None,
    project: Annotated[str | None, typer.Option(help="Who it is for.", show_default="default")] = None,
    network_mode: Annotated[str, typer.Option(help="How it is connected.")] = "private-nat",
    ssh_key: Annotated[
        list[Path] | None,
        typer.Option(
            help="Public key file that may log in; repeatable.",
            show_default="those in ~/.ssh; one is made if there is none",
        ),
    ] = None,
    lease: Annotated[str, typer.Option(metavar="TIME", help="How long: such as 90s, 30m, 2h, 7d.")] = "1h",
    count: Annotated[int, typer.Option(min=1, help="Slots, all of one node.")] = 1,
    node: Annotated[
        str | None,
        typer.Option(
            help="Place it on this node, even if the node is simulated.", show_default="placement chooses"
        ),
    ] = None,
    open_: Annotated[
        list[str] | None,
        typer.Option(
            "--open",
            metavar="WAY",
            help="A way in from outside, with --network-mode public-nat: tcp/22, tcp/20022:22 or address; repeatable.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Repeatable.", show_default=False)
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace-on-failure/--no-replace-on-failure",
            help="If the bring-up fails due to a node fault, place it on another node, once.",
        ),
    ] = True,
    wait_for_it: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is active.")] = True,
    as_json: AsJson = False,
) -> None:
    """Ask for a slice, and wait until it can be used."""
    labelled, lease_seconds, ways = labels(label or []), seconds(lease), [way_in(way) for way in open_ or []]
    with session(context, json=as_json) as here:
        body = {
            "sku": sku,
            "network_mode": network_mode,
            "ssh_authorized_keys": ssh_keys(ssh_key or [], here.screen.note),
            "lease_seconds": lease_seconds,
            "slot_count": count,
            "labels": labelled,
            **({"ingress": ways} if ways else {}),
            **({} if replace else {"replace_on_failure": False}),
            **{
                name: value
                for name, value in (("image", image), ("project", project), ("node", node))
                if value is not None
            },
        }
        raw = here.client.post("/v1/allocations", body)
        if wait_for_it:
            _wait_until(here, decode(raw, Allocation).id, "active")
        else:
            _show(here, raw)


def _wait_until(here: Session, allocation: str, state: str, *, since: int = 0) -> None:
    """Wait until it is in that state, at its event `since` or later, and show it. Raises `NotReached` when it ends."""
    here.screen.note(f"allocation {allocation}")
    wait(here, allocation, lambda story: story.state in {state, *_ENDS}, since=since)
    raw = here.client.get(allocation_path(allocation))
    _show(here, raw)
    found = decode(raw, Allocation)
    if found.state in _ENDS:
        raise _not_reached(found)


def _not_reached(found: Allocation) -> NotReached:
    why = f": {found.reason.message} [{found.reason.code}]" if found.reason else ""
    advice = f"see its whole story: sliceplane allocations events {found.id}"
    return NotReached(f"allocation {found.id} is {found.state}{why}", advice)


def _show(here: Session, raw: bytes, at: str | None = None) -> None:
    if here.screen.json:
        here.screen.document(raw)
    else:
        found = decode(raw, Allocation)
        now, nodes = counted_from(at, here.client.recorded), _nodes(here, found)
        simulated = frozenset(node.id for node in nodes if node.simulated)
        drift = [] if at else [each for node in nodes for each in node.slot_drift]
        here.screen.page(details.allocation(found, simulated=simulated, drift=drift, now=now))


def _nodes(here: Session, found: Allocation) -> list[Node]:
    """Return the nodes on which the allocation has slices."""
    nodes = {endpoint.node_id for endpoint in found.endpoints if endpoint.node_id and endpoint.via == "node"}
    return [decode(here.client.get(node_path(node)), Node) for node in sorted(nodes)]


@commands.command("list")
def list_allocations(
    context: typer.Context,
    *,
    project: Annotated[
        str | None, typer.Option(help="Only those of one project.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """The newest allocations."""
    with session(context, json=as_json) as here:
        items = here.client.items("/v1/allocations", {"project": project, "at": at}, limit)
        if as_json:
            here.screen.documents(items)
        else:
            found = [decode(item, Allocation) for item in items]
            here.screen.rows(tables.allocations(found, counted_from(at, here.client.recorded)))


@commands.command()
def show(context: typer.Context, *, allocation: AllocationId, at: At = None, as_json: AsJson = False) -> None:
    """One allocation: its state, slots, addresses, lease, and how to log in."""
    with session(context, json=as_json) as here:
        _show(here, here.client.get(allocation_path(allocation), {"at": at}), at)


@commands.command()
def stop(
    context: typer.Context,
    *,
    allocation: AllocationId,
    wait_for_it: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until it is proved off.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Switch its slices off. They keep their slots and addresses, and the lease runs on."""
    _switch(context, allocation, "stop", "stopped", wait_for_it=wait_for_it, as_json=as_json)


@commands.command()
def start(
    context: typer.Context,
    *,
    allocation: AllocationId,
    wait_for_it: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is active.")] = True,
    as_json: AsJson = False,
) -> None:
    """Switch the slices of a stopped allocation on again."""
    _switch(context, allocation, "start", "active", wait_for_it=wait_for_it, as_json=as_json)


def _switch(
    context: typer.Context, allocation: str, verb: str, state: str, *, wait_for_it: bool, as_json: bool
) -> None:
    with session(context, json=as_json) as here:
        raw = here.client.post(allocation_path(allocation, verb))
        if wait_for_it:
            # It may have been in that state before: what counts is how it stood when that was answered, and after.
            _wait_until(here, allocation, state, since=decode(raw, Allocation).version)
        else:
            _show(here, raw)


@commands.command()
def release(
    context: typer.Context,
    *,
    allocation: AllocationId,
    wait_for_it: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until it is proved gone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give an allocation back."""
    with session(context, json=as_json) as here:
        raw = here.client.delete(allocation_path(allocation))
        if wait_for_it:
            since = decode(raw, Allocation).version
            wait(here, allocation, lambda story: story.over, since=since, releasing=True)
            raw = here.client.get(allocation_path(allocation))
        _show(here, raw)


@commands.command("open")
def open_way(
    context: typer.Context,
    *,
    allocation: AllocationId,
    way: Annotated[str, typer.Argument(metavar="WAY", help="Such as tcp/22, tcp/20022:22 or address.")],
    slot: Annotated[int, typer.Option(min=0, help="To which of its slots, counted from 0.")] = 0,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Who may come; repeatable.", show_default="everybody"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Open a way in from outside to a slice. Its public address and port are its own at once."""
    body = {**way_in(way), "slot": slot, "sources": source or []}
    with session(context, json=as_json) as here:
        raw = here.client.post(allocation_path(allocation, "ingress"), body)
        if as_json:
            here.screen.document(raw)
        else:
            here.screen.page(details.ingress(decode(raw, Ingress)))


@commands.command("close")
def close_way(
    context: typer.Context,
    *,
    allocation: AllocationId,
    ingress: Annotated[str, typer.Argument(metavar="INGRESS", help="Id of a way in, ing-...")],
    as_json: AsJson = False,
) -> None:
    """Close a way in. Connections that came in by it end."""
    with session(context, json=as_json) as here:
        _show(here, here.client.delete(ingress_path(allocation, ingress)))


@commands.command()
def events(context: typer.Context, *, allocation: AllocationId, as_json: AsJson = False) -> None:
    """Everything that happened to an allocation and its slots so far: what, when, by whom and why."""
    with session(context, json=as_json) as here:
        show_events(here.screen, here.client.items(allocation_path(allocation, "events")), of=allocation)


@commands.command()
def watch(
    context: typer.Context, *, allocation: AllocationId, after: After = None, as_json: AsJson = False
) -> None:
    """Its events from the first on, as they come, until it is over. Ends with code 5 if it failed."""
    with session(context, json=as_json) as here:
        story = Story(allocation)
        follower = Follower(here.client, allocation_path(allocation, "watch"), {"after": after})
        for raw in follower:
            event = decode(raw, Event)
            if as_json:
                here.screen.line(raw)
            else:
                here.screen.rows(event_line.line(event, of=allocation))
            story = story.then(event)
            if story.over:
                break
        if story.state == "failed":
            raise _not_reached(decode(here.client.get(allocation_path(allocation)), Allocation))
