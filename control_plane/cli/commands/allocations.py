"""`sliceplane allocations`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from control_plane.cli.answers import Allocation, Event, Ingress, Node, decode
from control_plane.cli.commands.events import show_events
from control_plane.cli.failures import NotReached
from control_plane.cli.follow import Follower
from control_plane.cli.options import After, AllocationId, AsJson
from control_plane.cli.pages import details, event_line, tables
from control_plane.cli.paths import allocation_path, ingress_path
from control_plane.cli.request import ingress_request, labels, seconds, ssh_keys
from control_plane.cli.session import Session, session
from control_plane.cli.timeline import Timeline
from control_plane.cli.times import At, counted_from
from control_plane.cli.waiting import wait

commands = typer.Typer(no_args_is_help=True)
ingress_commands = typer.Typer(no_args_is_help=True)
commands.add_typer(ingress_commands, name="ingress", help="Add and remove ingress rules.")
_ENDS: Final = frozenset({"releasing", "failed", "released"})


@commands.command()
def create(
    context: typer.Context,
    *,
    sku: Annotated[str, typer.Option(help="Slice size; `sliceplane skus list` lists them.")],
    image: Annotated[str | None, typer.Option(help="Image to boot.", show_default="lab-guest")] = None,
    project: Annotated[
        str | None, typer.Option(help="Project that the allocation belongs to.", show_default="default")
    ] = None,
    network_mode: Annotated[
        str, typer.Option(help="Network mode, such as private-nat or public-nat.")
    ] = "private-nat",
    ssh_key: Annotated[
        list[Path] | None,
        typer.Option(
            help="Public key file that may log in; repeatable.",
            show_default="the keys in ~/.ssh; a key is created if there is none",
        ),
    ] = None,
    lease: Annotated[
        str, typer.Option(metavar="TIME", help="Length of the lease, such as 90s, 30m, 2h or 7d.")
    ] = "1h",
    count: Annotated[int, typer.Option(min=1, help="Number of slots, all on one node.")] = 1,
    node: Annotated[
        str | None,
        typer.Option(
            help="Place the allocation on this node, even if the node is simulated.",
            show_default="placement chooses",
        ),
    ] = None,
    open_: Annotated[
        list[str] | None,
        typer.Option(
            "--open",
            metavar="RULE",
            help="Ingress rule, with --network-mode public-nat: tcp/22, tcp/20022:22 or address; repeatable.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Label; repeatable.", show_default=False)
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace-on-failure/--no-replace-on-failure",
            help="If a slice cannot be brought up due to a node fault, place the allocation on another node, once.",
        ),
    ] = True,
    wait_for_it: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the allocation is active.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Create an allocation, and wait until its slices can be used."""
    labelled, lease_seconds = labels(label or []), seconds(lease)
    ingresses = [ingress_request(each) for each in open_ or []]
    with session(context, json=as_json) as current:
        body = {
            "sku": sku,
            "network_mode": network_mode,
            "ssh_authorized_keys": ssh_keys(ssh_key or [], current.screen.note),
            "lease_seconds": lease_seconds,
            "slot_count": count,
            "labels": labelled,
            **({"ingress": ingresses} if ingresses else {}),
            **({} if replace else {"replace_on_failure": False}),
            **{
                name: value
                for name, value in (("image", image), ("project", project), ("node", node))
                if value is not None
            },
        }
        raw = current.client.post("/v1/allocations", body)
        if wait_for_it:
            _wait_until(current, decode(raw, Allocation).id, "active")
        else:
            _show(current, raw)


def _wait_until(current: Session, allocation: str, state: str, *, since: int = 0) -> None:
    """Wait until the allocation is in the requested state, and show it. States before version `since` do not count.

    Raises `NotReached` if the allocation ends instead.
    """
    current.screen.note(f"allocation {allocation}")
    wait(current, allocation, lambda timeline: timeline.state in {state, *_ENDS}, since=since)
    raw = current.client.get(allocation_path(allocation))
    _show(current, raw)
    found = decode(raw, Allocation)
    if found.state in _ENDS:
        raise _not_reached(found)


def _not_reached(found: Allocation) -> NotReached:
    reason = f": {found.reason.message} [{found.reason.code}]" if found.reason else ""
    advice = f"show its timeline: sliceplane allocations events {found.id}"
    return NotReached(f"allocation {found.id} is {found.state}{reason}", advice)


def _show(current: Session, raw: bytes, at: str | None = None) -> None:
    if current.screen.json:
        current.screen.document(raw)
    else:
        found = decode(raw, Allocation)
        now, nodes = counted_from(at, current.client.recorded), _nodes(current, found)
        simulated = frozenset(node.id for node in nodes if node.simulated)
        drift = [] if at else [each for node in nodes for each in node.slot_drift]
        current.screen.page(details.allocation(found, simulated=simulated, drift=drift, now=now))


def _nodes(current: Session, found: Allocation) -> list[Node]:
    """Return the nodes on which the allocation has slices."""
    nodes = {endpoint.node_id for endpoint in found.endpoints if endpoint.node_id and endpoint.via == "node"}
    return [node for name in sorted(nodes) if (node := current.readable_node(name))]


@commands.command("list")
def list_allocations(
    context: typer.Context,
    *,
    project: Annotated[
        str | None, typer.Option(help="Only allocations of this project.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of allocations, newest first.")] = 50,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """List the newest allocations."""
    with session(context, json=as_json) as current:
        items = current.client.items("/v1/allocations", {"project": project, "at": at}, limit)
        if as_json:
            current.screen.documents(items)
        else:
            found = [decode(item, Allocation) for item in items]
            current.screen.rows(tables.allocations(found, counted_from(at, current.client.recorded)))


@commands.command()
def show(context: typer.Context, *, allocation: AllocationId, at: At = None, as_json: AsJson = False) -> None:
    """Show an allocation: its state, slots, addresses, lease, and how to log in."""
    with session(context, json=as_json) as current:
        _show(current, current.client.get(allocation_path(allocation), {"at": at}), at)


@commands.command()
def stop(
    context: typer.Context,
    *,
    allocation: AllocationId,
    wait_for_it: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the slices are proved to be off.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Stop the slices of an allocation. It keeps its slots and addresses, and the lease continues."""
    _switch(context, allocation, "stop", "stopped", wait_for_it=wait_for_it, as_json=as_json)


@commands.command()
def start(
    context: typer.Context,
    *,
    allocation: AllocationId,
    wait_for_it: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the allocation is active.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Start the slices of a stopped allocation."""
    _switch(context, allocation, "start", "active", wait_for_it=wait_for_it, as_json=as_json)


def _switch(
    context: typer.Context, allocation: str, verb: str, state: str, *, wait_for_it: bool, as_json: bool
) -> None:
    with session(context, json=as_json) as current:
        raw = current.client.post(allocation_path(allocation, verb))
        if wait_for_it:
            # The allocation may have been in that state before: only states from this response on count.
            _wait_until(current, allocation, state, since=decode(raw, Allocation).version)
        else:
            _show(current, raw)


@commands.command()
def release(
    context: typer.Context,
    *,
    allocation: AllocationId,
    wait_for_it: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the slots are proved empty.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Release an allocation."""
    with session(context, json=as_json) as current:
        raw = current.client.delete(allocation_path(allocation))
        if wait_for_it:
            since = decode(raw, Allocation).version
            wait(current, allocation, lambda timeline: timeline.over, since=since, releasing=True)
            raw = current.client.get(allocation_path(allocation))
        _show(current, raw)


@ingress_commands.command("add")
def add_ingress_rule(
    context: typer.Context,
    *,
    allocation: AllocationId,
    rule: Annotated[
        str, typer.Argument(metavar="RULE", help="Ingress rule, such as tcp/22, tcp/20022:22 or address.")
    ],
    slot: Annotated[
        int, typer.Option(min=0, help="Index of the slot in the allocation, counted from 0.")
    ] = 0,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Allowed source network; repeatable.", show_default="all"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add an ingress rule from outside to a slice. Its public address and port are reserved at once."""
    body = {**ingress_request(rule), "slot": slot, "sources": source or []}
    with session(context, json=as_json) as current:
        raw = current.client.post(allocation_path(allocation, "ingress"), body)
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.page(details.ingress(decode(raw, Ingress)))


@ingress_commands.command("remove")
def remove_ingress_rule(
    context: typer.Context,
    *,
    allocation: AllocationId,
    ingress: Annotated[str, typer.Argument(metavar="INGRESS", help="Id of an ingress rule, ing-...")],
    as_json: AsJson = False,
) -> None:
    """Remove an ingress rule. Connections through it are terminated."""
    with session(context, json=as_json) as current:
        _show(current, current.client.delete(ingress_path(allocation, ingress)))


@commands.command()
def events(context: typer.Context, *, allocation: AllocationId, as_json: AsJson = False) -> None:
    """List the timeline of an allocation: its events and those of its slots, with time, actor and reason."""
    with session(context, json=as_json) as current:
        show_events(
            current.screen, current.client.items(allocation_path(allocation, "events")), of=allocation
        )


@commands.command()
def watch(
    context: typer.Context, *, allocation: AllocationId, after: After = None, as_json: AsJson = False
) -> None:
    """Follow the timeline of an allocation from its first event until it ends. Exit code 5 if it failed."""
    with session(context, json=as_json) as current:
        timeline = Timeline(allocation)
        follower = Follower(current.client, allocation_path(allocation, "watch"), {"after": after})
        for raw in follower:
            event = decode(raw, Event)
            if as_json:
                current.screen.line(raw)
            else:
                current.screen.rows(event_line.line(event, of=allocation))
            timeline = timeline.then(event)
            if timeline.over:
                break
        if timeline.state == "failed":
            raise _not_reached(decode(current.client.get(allocation_path(allocation)), Allocation))
