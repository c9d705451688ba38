"""Commands of `sliceplane allocations`: create, list, show, watch, stop, start, renew and release allocations."""

from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import UNSET, UnsetType
from rich.console import RenderableType

from control_plane.cli import creation_options as options
from control_plane.cli.commands.events import show_events
from control_plane.cli.failures import NotPlaceable, NotReached, WrongUsage
from control_plane.cli.options import After, AllocationId, AllProjects, Output, Timeout
from control_plane.cli.own_keys import certificate_file
from control_plane.cli.pages import details, event_line, placements, tables
from control_plane.cli.request import (
    ingress_request,
    keys_in,
    keys_of_preview,
    labels,
    seconds,
    ssh_keys,
    text_in,
)
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
    sku: options.Sku,
    or_sku: options.OrSku = None,
    image: options.Image = None,
    app_profile: options.AppProfile = None,
    network_mode: options.NetworkMode = "private-nat",
    ssh_key: options.SshKeys = None,
    user_data: options.UserData = None,
    gateway_access: options.GatewayAccess = False,
    lease: options.LeaseTime = "1h",
    count: options.SlotCount = 1,
    node: options.OnNode = None,
    open_: options.Open = None,
    label: options.LabelOptions = None,
    apart_from: options.ApartFrom = None,
    max_price_per_hour: options.MaxPricePerHour = None,
    wait_for_capacity: options.WaitForCapacity = None,
    priority: options.Priority = None,
    replace: options.ReplaceOnFailure = True,
    explain: options.Explain = False,
    wait_for_it: options.WaitUntilActive = True,
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
            ssh_authorized_keys=_ssh_keys(current, ssh_key or [], explain=explain),
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
            gateway_access=True if gateway_access else UNSET,
            user_data=UNSET if user_data is None else text_in(user_data, "--user-data"),
            wait_for_capacity=_wait_options(wait_for_capacity, priority),
        )
        if explain:
            _explain(current, body)
            return
        reply = current.send(calls.create_allocation(body))
        if wait_for_it:
            _wait_until(current, reply.value.id, "active", timeout=timeout)
        else:
            _show(current, reply)


def _ssh_keys(current: Session, files: list[Path], *, explain: bool) -> list[str]:
    if explain:
        return keys_of_preview(files)
    return ssh_keys(files, current.screen.note, create=not current.as_curl)


def _explain(current: Session, body: CreateAllocation) -> None:
    """Show where an allocation would be placed. Raises `NotPlaceable` if it would not be placed now."""
    reply = current.send(calls.preview_placement(body))
    current.screen.one(reply, placements.preview)
    if reasons := reply.value.reasons:
        codes = ", ".join(dict.fromkeys(each.code for each in reasons))
        raise NotPlaceable(f"the request would not be placed now: {codes}")


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


@commands.command("serial-log")
def serial_log(
    context: typer.Context,
    *,
    allocation: AllocationId,
    slot: Annotated[int, typer.Option(min=0, help="Number of the slot, counted from 0.")] = 0,
    attempt: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of the placement, counted from 1.", show_default="the newest"
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Only the last N lines.",
            show_default="the whole log, but at most its last mebibyte",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Print the output of a slice's serial port, of all its boots, also after its removal, to find out why it did not
    boot.
    """
    with session(context, output) as current:
        reply = current.send(calls.serial_log(allocation, slot=slot, attempt=attempt, tail=tail))
        found = reply.value
        if not found.text:
            current.screen.note(f"the serial log of {found.slot_id} is empty")
        elif found.truncated:
            current.screen.note(
                f"older output of {found.slot_id} is left out; the log has {found.kept_bytes} bytes"
            )
        current.screen.text(reply, lambda log: log.text)


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
            help="Fault of the hardware, in words. No slice is placed in the released slots until an admin readmits"
            " them.",
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


@commands.command("ssh-certificate")
def ssh_certificate(
    context: typer.Context,
    *,
    allocation: AllocationId,
    public_key: Annotated[
        Path, typer.Option(help="File with the public key to certify, such as ~/.ssh/id_ed25519.pub.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the certificate. An existing file is replaced.",
            show_default="beside the key, with the ending -cert.pub, where ssh finds it",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Get an SSH certificate for a key, with which the slices of an allocation accept it for 15 minutes.

    The allocation must be active, and created with --gateway-access.
    """
    file = out or certificate_file(public_key)
    with session(context, output) as current:
        [key, *further] = keys_in(public_key, "--public-key")
        if further:
            raise WrongUsage(f"--public-key: {public_key} has several keys", "specify a file with one key")
        reply = current.send(calls.request_ssh_certificate(allocation, key))
        try:
            file.write_text(f"{reply.value.certificate}\n")
        except OSError as error:
            raise WrongUsage(f"the certificate cannot be written to {file}: {error.strerror}") from error
        current.screen.note(f"wrote the certificate to {file}")
        current.screen.one(reply, details.ssh_certificate)


@ingress_commands.command("add")
def add_ingress_rule(
    context: typer.Context,
    *,
    allocation: AllocationId,
    rule: Annotated[
        str,
        typer.Argument(
            metavar="RULE",
            help="Ingress rule: PROTOCOL/PORT, such as tcp/22 or udp/53; PROTOCOL/PUBLIC_PORT:PORT, such as tcp/20022:22; or the word"
            " address for a whole public address.",
        ),
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
