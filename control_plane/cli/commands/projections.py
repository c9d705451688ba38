"""`sliceplane projections`: maintenance of the read models, which are derived from the ledger.

The control plane's projector executes the requested operations; this client only displays their progress.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import typer

from control_plane.cli.advancing import Advancing, advancing
from control_plane.cli.failures import Different, Failure, Stopped, WrongUsage
from control_plane.cli.options import Output, Timeout
from control_plane.cli.pages import projections as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import Session, session
from control_plane.cli.waiting import continuing, polled
from control_plane.client import calls
from control_plane.client.answers import Page, decode
from control_plane.client.bodies import SkipEvent
from control_plane.client.exchange import Call, Reply
from control_plane.client.projection_answers import Projection, Rebuild, Verification

commands = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a projection, such as allocations.")]
_WAIT: Final = "--wait/--no-wait"
_LIST: Final = "show the state of the projection: sliceplane projections list"


@commands.command("list")
def list_projections(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List every projection with its position and, if it is stopped, the reason."""
    with session(context, output) as current:
        current.show_list(calls.projections(), pages.projections)


@commands.command()
def rebuild(
    context: typer.Context,
    *,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Rebuild every projection.")] = False,
    wait_for_it: Annotated[
        bool, typer.Option(_WAIT, help="Wait until the rebuilt tables are in use.")
    ] = True,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> None:
    """Rebuild projections from the whole ledger in a second set of tables, and swap them in, without an interruption.

    Ends when they are swapped in; exit code 5 if an event stops the rebuild. Ctrl-C ends this command, not the rebuild.
    """
    if bool(names) == every:
        raise typer.BadParameter("specify either the names of the projections to rebuild, or --all")
    with session(context, output) as current:
        requested = list(dict.fromkeys(names or [])) if current.as_curl else _known(current, names)
        # Before `continuing`: if it is interrupted here, not all rebuilds are ordered, so the note would be wrong.
        ordered = list(current.each(*map(calls.rebuild_projection, requested)))
        if wait_for_it:
            what = f"the rebuild of {', '.join(requested)}"
            with continuing(what, _LIST), advancing(current.screen, "rebuilding") as display:
                ordered = _until_swapped(current, [each.value for each in ordered], display, timeout)
        current.screen.many(ordered, pages.projections)


def _known(current: Session, names: list[str] | None) -> list[str]:
    """Return the given names of projections, or all names. Raises `WrongUsage` if no projection has a given name."""
    known = list(current.client.items(calls.projections()))
    requested = list(dict.fromkeys(names)) if names else [each.name for each in known]
    _refuse_unknown(requested, known)
    return requested


def _refuse_unknown(requested: Sequence[str], known: Iterable[Projection]) -> None:
    names = [each.name for each in known]
    if unknown := [name for name in requested if name not in names]:
        quoted = ", ".join(map(repr, unknown))
        raise WrongUsage(
            f"no projection is named {quoted}", f"choose from the projections {', '.join(names)}"
        )


def _until_swapped(
    current: Session, ordered: Sequence[Projection], display: Advancing, timeout: float | None
) -> list[Reply[Projection]]:
    """Wait until the tables of all requested rebuilds are swapped in; return the projections. Raises `Stopped`."""
    rebuilt: dict[str, Reply[Projection]] = {}
    orders = {each.name: each.rebuild for each in ordered}
    waiting: dict[str, str] = {}
    for page in polled(current, Call("GET", calls.projections().path, Page), timeout):
        for raw in page.value.items:
            item = decode(raw, Projection)
            if item.name not in orders or item.name in rebuilt:
                continue
            if item.rebuild is None or not _same(item.rebuild, orders[item.name]):
                rebuilt[item.name] = Reply(bytes(raw), Projection)
                display.arrived(item.name, item.last_position, "is rebuilt and live")
            else:
                _refuse_to_wait(item)
                if (reason := item.rebuild.waits_for) and waiting.get(item.name) != reason:
                    waiting[item.name] = reason
                    current.screen.note(f"{item.name}: {reason}")
                display.at(item.name, item.rebuild.position, item.last_position)
        if len(rebuilt) == len(orders):
            break
    return [rebuilt[name] for name in orders]


def _same(one: Rebuild, other: Rebuild | None) -> bool:
    """Return whether two responses describe the same rebuild of a projection, and not two successive rebuilds."""
    return other is not None and one.requested_at == other.requested_at


def _refuse_to_wait(item: Projection) -> None:
    stop = item.rebuild and item.rebuild.stopped
    if stop:
        what = f"the rebuild of {item.name} stopped at position {stop.position}: {stop.error}"
        raise Stopped(
            what,
            "check first whether the ledger was changed: sliceplane projections verify",
            *_options_after_stop(item.name, stop.position),
            "until the rebuild is complete, the live tables remain in use unchanged",
        )


def _options_after_stop(name: str, position: int) -> tuple[str, ...]:
    return (
        f"show the event: sliceplane events list --after {position - 1} --limit 1",
        f"fix the cause, then: sliceplane projections retry {name}",
        f"alternatively, skip the event permanently: sliceplane projections skip {name} {position} --reason WHY",
    )


@commands.command()
def verify(
    context: typer.Context,
    *,
    wait_for_it: Annotated[bool, typer.Option(_WAIT, help="Wait for the result.")] = True,
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> None:
    """Replay the ledger from its beginning, and compare the result with every live table, row by row.

    Exit code 0 if all tables are equal; otherwise 1, with the first difference of each table.
    """
    with session(context, output) as current:
        reply = current.send(calls.verify())
        if not wait_for_it:
            current.screen.one(reply, lambda found: f"verification {found.id} is requested")
            return
        advice = "to see a result, start another verification: sliceplane projections verify"
        with continuing("the verification", advice), advancing(current.screen, "verifying") as display:
            reply = _until_compared(current, reply.value.id, display, timeout)
        found = reply.value
        if current.screen.machine:
            current.screen.document(reply.raw)
        elif found.state == "equal":
            current.screen.page(f"all tables are equal to the replayed ledger at position {found.position}")
        elif found.differences:
            current.screen.page(pages.differences(found.differences))
        if found.state != "equal":
            raise _not_equal(current, found)


def _until_compared(
    current: Session, verification: str, display: Advancing, timeout: float | None
) -> Reply[Verification]:
    for reply in polled(current, calls.verification(verification), timeout):
        found = reply.value
        if found.state not in {"asked", "running"}:
            return reply
        display.at("the tables", found.position or 0, found.upto or 0)
    raise AssertionError("the polling of a verification must end with a result or a failure")


def _not_equal(current: Session, found: Verification) -> Failure:
    if stop := found.stopped:
        what = f"the replay stopped at position {stop.position}, in {stop.projection}: {stop.error}"
        name, position = stop.projection, stop.position
        see, *_ = _options_after_stop(name, position)
        return Stopped(
            what,
            see,
            f"fix the cause; or rebuild {name} (the rebuild stops at this event) and skip the event permanently:",
            f"sliceplane projections rebuild {name}; sliceplane projections skip {name} {position} --reason WHY",
        )
    tables = list(dict.fromkeys(each.table for each in found.differences))
    count, verb = ("1 table", "differs") if len(tables) == 1 else (f"{len(tables)} tables", "differ")
    what = f"{count} {verb} from the replayed ledger at position {found.position}"
    if found.advice is not None and found.advice.code == "rebuild":
        return Different(what, _rebuild_advice(current, tables))
    # A newer control plane may return an unknown advice code: print its message, and do not advise a rebuild.
    return Different(what, *_evidence_advice(found))


def _evidence_advice(found: Verification) -> Iterator[str]:
    if found.advice is not None:
        yield found.advice.message
    yield "stop the control plane's programs (./dev down), then copy the database: its files, or pg_dump"
    if tables := sorted({each.table for each in found.differences if each.kind == "ledger"}):
        names = ", ".join(tables)
        yield f"only appends to the ledger may change {names}; find out what else did, and compare with a backup"


def _rebuild_advice(current: Session, tables: Sequence[str]) -> str:
    known = list(current.client.items(calls.projections()))
    names = [each.name for each in known if set(each.tables) & set(tables)]
    if not names:
        return f"no projection fills the differing tables ({', '.join(tables)}): find out which program changed them"
    return f"rebuild the read models from the ledger: sliceplane projections rebuild {' '.join(names)}"


@commands.command()
def skip(
    context: typer.Context,
    *,
    name: Name,
    position: Annotated[
        int,
        typer.Argument(min=1, metavar="POSITION", help="Position of the event that stops the projection."),
    ],
    reason: Annotated[
        str, typer.Option(help="Reason for skipping; it is recorded in the ledger with your name.")
    ],
    output: Output = Format.TABLE,
) -> None:
    """Skip the event that stops a projection, now and in every rebuild."""
    with session(context, output) as current:
        body = SkipEvent(position=position, reason=reason)
        current.screen.many([current.send(calls.skip_event(name, body))], pages.projections)


@commands.command()
def retry(context: typer.Context, *, name: Name, output: Output = Format.TABLE) -> None:
    """Retry the event that stops a projection, after its cause was fixed."""
    with session(context, output) as current:
        current.screen.many([current.send(calls.retry_projection(name))], pages.projections)
