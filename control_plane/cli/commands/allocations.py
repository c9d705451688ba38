"""`sliceplane allocations`."""

from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import UNSET, UnsetType
from rich.console import RenderableType

from control_plane.cli.commands.events import show_events
from control_plane.cli.failures import NotReached
from control_plane.cli.options import After, AllocationId, AllProjects, Output, Timeout
from control_plane.cli.pages import details, event_line, placements, tables
from control_plane.cli.request import ingress_request, labels, seconds, ssh_keys, text_in
from control_plane.cli.screen import Format
from control_plane.cli.session import Session, session
from control_plane.cli.times import At, counted_from
from control_plane.cli.waiting import wait
from control_plane.client import calls
from control_plane.client.answers import Allocation, Node
from control_plane.client.bodies import CreateAllocation, WaitForCapacity
from control_plane.client.exchange import Call, Reply
from control_plane.client.timeline import Timeline
from control_plane.client.waits import ENDS

commands = typer.Typer(no_args_is_help=True)
ingress_commands = typer.Typer(no_args_is_help=True)
commands.add_typer(ingress_commands, name="ingress", help="Add and remove ingress rules.")
_WAIT: Final = "--wait/--no-wait"


@commands.command()
def create(
    context: typer.Context,
    *,
    sku: Annotated[str, typer.Option(help="Slice size; `sliceplane skus list` lists them.")],
    or_sku: Annotated[
        list[str] | None,
        typer.Option(
            help="SKU to use if no node is suitable for the SKUs before it; repeatable.", show_default=False
        ),
    ] = None,
    image: Annotated[str | None, typer.Option(help="Image to boot.", show_default="lab-guest")] = None,
    app_profile: Annotated[
        str | None,
        typer.Option(
            help="App profile of the workload; `sliceplane app-profiles list` lists them.",
            show_default="none",
        ),
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
    user_data: Annotated[
        Path | None,
        typer.Option(
            help="File with user-data for cloud-init: a cloud-config or a script.", show_default=False
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
    apart_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Use no node on which an allocation of the project with this label has a slot; repeatable.",
            show_default=False,
        ),
    ] = None,
    max_price_per_hour: Annotated[
        str | None,
        typer.Option(
            help="Use no SKU with which the whole allocation costs more per hour, such as 2.50.",
            show_default="any price",
        ),
    ] = None,
    wait_for_capacity: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="If it cannot be placed now, let it wait for capacity for this time, such as 30m, or default.",
            show_default="it is refused",
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            help="Order of waiting allocations, with --wait-for-capacity: a higher priority is placed first.",
            show_default="0",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace-on-failure/--no-replace-on-failure",
            help="If a slice cannot be brought up due to a node fault, place the allocation on another node, once.",
        ),
    ] = True,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Create nothing: show where it would be placed, and the reason of every node."
        ),
    ] = False,
    wait_for_it: Annotated[bool, typer.Option(_WAIT, help="Wait until the allocation is active.")] = True,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> None:
    """Create an allocation in the project of --project, and wait until its slices can be used."""
    labelled, lease_seconds = labels(label or []), seconds(lease, "--lease")
    ingresses = [ingress_request(each) for each in open_ or []]
    with session(context, output) as current:
        body = CreateAllocation(
            sku=sku,
            alternative_skus=or_sku or UNSET,
            ssh_authorized_keys=ssh_keys(ssh_key or [], current.screen.note, create=not current.as_curl),
            project=current.access.project or UNSET,
            network_mode=network_mode,
            image=image or UNSET,
            app_profile=app_profile or UNSET,
            lease_seconds=lease_seconds,
            slot_count=count,
            node=node or UNSET,
            ingress=ingresses or UNSET,
            replace_on_failure=UNSET if replace else False,
            labels=labelled,
            apart_from=labels(apart_from or [], "--apart-from") or UNSET,
            max_price_per_hour=max_price_per_hour or UNSET,
            user_data=UNSET if user_data is None else text_in(user_data, "--user-data"),
            wait_for_capacity=_wait_options(wait_for_capacity, priority),
        )
        if explain:
            current.screen.one(current.send(calls.preview_placement(body)), placements.preview)
            return
        reply = current.send(calls.create_allocation(body))
        if wait_for_it:
            _wait_until(current, reply.value.id, "active", timeout=timeout)
        else:
            _show(current, reply)


def _wait_options(duration: str | None, priority: int | None) -> WaitForCapacity | UnsetType:
    """Return how a new allocation waits for capacity. Raises `typer.BadParameter`."""
    if duration is None:
        if priority is not None:
            raise typer.BadParameter("add --wait-for-capacity TIME", param_hint="--priority")
        return UNSET
    waits = UNSET if duration == "default" else seconds(duration, "--wait-for-capacity")
    return WaitForCapacity(wait_seconds=waits, priority=UNSET if priority is None else priority)


def _wait_until(
    current: Session, allocation: str, state: str, *, since: int = 0, timeout: float | None = None
) -> None:
    """Wait until the allocation is in the requested state, and show it. States before version `since` do not count.

    Raises `NotReached` if the allocation ends instead.
    """
    current.screen.note(f"allocation {allocation}")
    wanted = {state, *ENDS}
    wait(current, allocation, lambda timeline: timeline.state in wanted, since=since, timeout=timeout)
    reply = current.send(calls.allocation(allocation))
    _show(current, reply)
    if reply.value.state in ENDS:
        raise _not_reached(reply.value)


def _not_reached(found: Allocation) -> NotReached:
    reason = f": {found.reason.message} [{found.reason.code}]" if found.reason else ""
    advice = f"show its timeline: sliceplane allocations events {found.id}"
    return NotReached(f"allocation {found.id} is {found.state}{reason}", advice)


def _show(current: Session, reply: Reply[Allocation], at: str | None = None) -> None:
    current.screen.one(reply, lambda found: _page(current, found, at))


def _page(current: Session, found: Allocation, at: str | None) -> RenderableType:
    now, nodes = counted_from(at, current.recorded), _nodes(current, found)
    simulated = frozenset(node.id for node in nodes if node.simulated)
    drift = [] if at else [each for node in nodes for each in node.slot_drift]
    return details.allocation(found, simulated=simulated, drift=drift, now=now)


def _nodes(current: Session, found: Allocation) -> list[Node]:
    """Return the nodes on which the allocation has slices; none if the caller is not permitted to read nodes."""
    nodes = {endpoint.node_id for endpoint in found.endpoints if endpoint.node_id and endpoint.via == "node"}
    return [each for node in sorted(nodes) if (each := current.readable_node(node))]


@commands.command("list")
def list_allocations(
    context: typer.Context,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of allocations, newest first.")] = 50,
    all_projects: AllProjects = False,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only allocations in this state, such as active; repeatable.", show_default=False),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Only allocations with this label; repeatable.", show_default=False
        ),
    ] = None,
    at: At = None,
    output: Output = Format.TABLE,
) -> None:
    """List the newest allocations, of the project of --project or of all projects that you may read."""
    labelled = labels(label) if label else None
    with session(context, output) as current:
        project = None if all_projects else current.access.project
        current.show_list(
            calls.allocations(project=project, states=state, labels=labelled, at=at),
            lambda found: tables.allocations(found, counted_from(at, current.recorded)),
            limit,
        )


@commands.command()
def show(
    context: typer.Context, *, allocation: AllocationId, at: At = None, output: Output = Format.TABLE
) -> None:
    """Show an allocation: its state, slots, addresses, lease, and how to log in."""
    with session(context, output) as current:
        _show(current, current.send(calls.allocation(allocation, at=at)), at)


@commands.command()
def placement(context: typer.Context, *, allocation: AllocationId, output: Output = Format.TABLE) -> None:
    """Explain why an allocation has its slots: the reason of every node just before the placement."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.placement(allocation)), placements.placement)


@commands.command()
def stop(
    context: typer.Context,
    *,
    allocation: AllocationId,
    wait_for_it: Annotated[
        bool, typer.Option(_WAIT, help="Wait until the slices are proved to be off.")
    ] = True,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> None:
    """Stop the slices of an allocation. It keeps its slots and addresses, and the lease continues."""
    with session(context, output) as current:
        _switch(current, calls.stop_allocation(allocation), "stopped" if wait_for_it else None, timeout)


@commands.command()
def start(
    context: typer.Context,
    *,
    allocation: AllocationId,
    wait_for_it: Annotated[bool, typer.Option(_WAIT, help="Wait until the allocation is active.")] = True,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> None:
    """Start the slices of a stopped allocation."""
    with session(context, output) as current:
        _switch(current, calls.start_allocation(allocation), "active" if wait_for_it else None, timeout)


def _switch(current: Session, call: Call[Allocation], state: str | None, timeout: float | None) -> None:
    """Stop or start an allocation with `call`, and wait until the allocation is in `state`; None: do not wait."""
    reply = current.send(call)
    if state is None:
        _show(current, reply)
        return
    # The allocation may have been in that state before: only states from this response on count.
    found = reply.value
    _wait_until(current, found.id, state, since=found.version, timeout=timeout)


@commands.command()
def renew(
    context: typer.Context,
    *,
    allocation: AllocationId,
    lease: Annotated[
        str,
        typer.Option(metavar="TIME", help="Time from now until the lease ends, such as 90s, 30m, 2h or 7d."),
    ],
    output: Output = Format.TABLE,
) -> None:
    """Extend the lease of an allocation. A lease that ends later already is not changed."""
    duration = seconds(lease, "--lease")
    with session(context, output) as current:
        _show(current, current.send(calls.renew_lease(allocation, duration)))


@commands.command()
def release(
    context: typer.Context,
    *,
    allocation: AllocationId,
    fault: Annotated[
        str | None,
        typer.Option(
            help="What is wrong with the hardware. No slice is placed in its slots until an admin readmits them.",
            show_default=False,
        ),
    ] = None,
    wait_for_it: Annotated[bool, typer.Option(_WAIT, help="Wait until the slots are proved empty.")] = False,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> None:
    """Release an allocation."""
    with session(context, output) as current:
        released = calls.release_allocation(allocation)
        reply = current.send(released if fault is None else calls.report_fault(allocation, fault))
        if wait_for_it:
            since = reply.value.version
            wait(current, allocation, lambda found: found.over, since=since, releasing=True, timeout=timeout)
            reply = current.send(calls.allocation(allocation))
        _show(current, reply)


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
    output: Output = Format.TABLE,
) -> None:
    """Add an ingress rule from outside to a slice. Its public address and port are reserved at once."""
    body = ingress_request(rule, slot, source or [])
    with session(context, output) as current:
        current.screen.one(current.send(calls.add_ingress(allocation, body)), details.ingress)


@ingress_commands.command("remove")
def remove_ingress_rule(
    context: typer.Context,
    *,
    allocation: AllocationId,
    ingress: Annotated[str, typer.Argument(metavar="INGRESS", help="Id of an ingress rule, ing-...")],
    output: Output = Format.TABLE,
) -> None:
    """Remove an ingress rule. Connections through it are terminated."""
    with session(context, output) as current:
        _show(current, current.send(calls.remove_ingress(allocation, ingress)))


@commands.command()
def events(context: typer.Context, *, allocation: AllocationId, output: Output = Format.TABLE) -> None:
    """List the timeline of an allocation: its events and those of its slots, with time, actor and reason."""
    with session(context, output) as current:
        show_events(current, calls.allocation_events(allocation), of=allocation)


@commands.command()
def watch(
    context: typer.Context,
    *,
    allocation: AllocationId,
    after: After = None,
    output: Output = Format.TABLE,
) -> None:
    """Follow the timeline of an allocation from its first event until it ends. Exit code 5 if it failed."""
    with session(context, output) as current:
        timeline = Timeline(allocation)
        for reply in current.follow(calls.watch_allocation(allocation, after=after)):
            current.screen.each(reply, lambda event: event_line.line(event, of=allocation))
            timeline = timeline.then(reply.value)
            if timeline.over:
                break
        if timeline.state == "failed":
            raise _not_reached(current.client.run(calls.allocation(allocation)))
