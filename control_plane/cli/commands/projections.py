"""`sliceplane projections`: the keeping of tables that follow from the ledger.

What is asked for is done by the control plane's projector, whether or not somebody looks; looking shows how far it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import msgspec
import typer

from control_plane.cli.advancing import Advancing, advancing
from control_plane.cli.answers import Page, decode
from control_plane.cli.failures import Different, Failure, Stopped, WrongUsage
from control_plane.cli.options import AsJson
from control_plane.cli.pages import projections as pages
from control_plane.cli.paths import projection_path
from control_plane.cli.polling import going_on, polled
from control_plane.cli.replays import Projection, Rebuild, Verification
from control_plane.cli.session import Session, session

commands = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Such as allocations.")]
_LIST: Final = "see how it stands: sliceplane projections list"


@commands.command("list")
def list_projections(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Every projection: how far it is, and what stops it."""
    with session(context, json=as_json) as here:
        _show(here, here.client.items("/v1/projections"))


@commands.command()
def rebuild(
    context: typer.Context,
    *,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Every projection there is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fill projections anew from the whole log, beside the live ones, and swap them in. Nobody has to stop for it.

    Ends when they are swapped in; with code 5 when an event stops it. Ctrl-C ends the watching, not the rebuild.
    """
    if bool(names) == every:
        raise typer.BadParameter("name the projections to rebuild, or say --all")
    with session(context, json=as_json) as here:
        known = [decode(item, Projection) for item in here.client.items("/v1/projections")]
        asked = [each.name for each in known] if every else list(dict.fromkeys(names or []))
        _refuse_unknown(asked, known)
        # Ordered before anything is said to go on: interrupted here, not all of it does.
        ordered = [decode(here.client.post(projection_path(name, "rebuild")), Projection) for name in asked]
        told = f"the rebuild of {', '.join(asked)}"
        with going_on(told, _LIST), advancing(here.screen, "rebuilding") as drawn:
            rebuilt = _until_swapped(here, ordered, drawn)
        _show(here, rebuilt)


def _refuse_unknown(asked: Sequence[str], known: Iterable[Projection]) -> None:
    names = [each.name for each in known]
    if wrong := [name for name in asked if name not in names]:
        told = ", ".join(map(repr, wrong))
        raise WrongUsage(f"no projection is named {told}", f"there are {', '.join(names)}")


def _until_swapped(here: Session, ordered: Sequence[Projection], drawn: Advancing) -> list[msgspec.Raw]:
    """The projections, as each was when it was swapped in. Raises `Stopped`."""
    rebuilt: dict[str, msgspec.Raw] = {}
    orders = {each.name: each.rebuild for each in ordered}
    waiting: dict[str, str] = {}
    for page in polled(here, "/v1/projections"):
        for raw in decode(page, Page).items:
            item = decode(raw, Projection)
            if item.name not in orders or item.name in rebuilt:
                continue
            if item.rebuild is None or not _same(item.rebuild, orders[item.name]):
                rebuilt[item.name] = raw
                drawn.arrived(item.name, item.last_position, "is rebuilt and live")
            else:
                _refuse_to_wait(item)
                if (why := item.rebuild.waits_for) and waiting.get(item.name) != why:
                    waiting[item.name] = why
                    here.screen.note(f"{item.name}: {why}")
                drawn.at(item.name, item.rebuild.position, item.last_position)
        if len(rebuilt) == len(orders):
            break
    return [rebuilt[name] for name in orders]


def _same(one: Rebuild, other: Rebuild | None) -> bool:
    """Whether it is the rebuild that we asked for, and not the next that somebody ordered."""
    return other is not None and one.ordered_at == other.ordered_at


def _refuse_to_wait(item: Projection) -> None:
    stop = item.rebuild and item.rebuild.stopped
    if stop:
        what = f"the rebuild of {item.name} stopped at position {stop.position}: {stop.error}"
        raise Stopped(
            what,
            "check first whether the ledger was changed: sliceplane projections verify",
            *_ways_on(item.name, stop.position),
            "until then the live tables stay as they are",
        )


def _ways_on(name: str, position: int) -> tuple[str, ...]:
    return (
        f"see the event: sliceplane events list --after {position - 1} --limit 1",
        f"mend the cause, then: sliceplane projections retry {name}",
        f"or pass over it, for good: sliceplane projections skip {name} {position} --reason WHY",
    )


@commands.command()
def verify(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Replay the log from its beginning, and compare every live table with that, row for row.

    Ends with code 0 when all are equal, with 1 and the first difference of each table otherwise.
    """
    with session(context, json=as_json) as here:
        asked = decode(here.client.post("/v1/verifications"), Verification).id
        again = "nothing hangs on it; for an answer: sliceplane projections verify"
        with going_on("the verification", again), advancing(here.screen, "verifying") as drawn:
            raw = _until_compared(here, asked, drawn)
        found = decode(raw, Verification)
        if as_json:
            here.screen.document(raw)
        elif found.state == "equal":
            here.screen.page(f"equal at position {found.position}")
        elif found.differences:
            here.screen.page(pages.differences(found.differences))
        if found.state != "equal":
            raise _not_equal(here, found)


def _until_compared(here: Session, asked: str, drawn: Advancing) -> msgspec.Raw:
    for raw in polled(here, f"/v1/verifications/{asked}"):
        found = decode(raw, Verification)
        if found.state not in {"asked", "running"}:
            return raw
        drawn.at("the tables", found.position or 0, found.upto or 0)
    raise AssertionError("it is polled for as long as it runs")


def _not_equal(here: Session, found: Verification) -> Failure:
    if stop := found.stopped:
        what = f"the replay stopped at position {stop.position}, in {stop.projection}: {stop.error}"
        name, position = stop.projection, stop.position
        see, *_ = _ways_on(name, position)
        return Stopped(
            what,
            see,
            f"mend the cause, or let {name} be stopped by it and pass over it, for good:",
            f"sliceplane projections rebuild {name}; sliceplane projections skip {name} {position} --reason WHY",
        )
    tables = list(dict.fromkeys(each.table for each in found.differences))
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    what = f"{count} not equal to the replayed ledger, at position {found.position}"
    if found.advice is not None and found.advice.code == "rebuild":
        return Different(what, _rebuild_advice(here, tables))
    # A newer control plane may return advice that this release does not know: print its message, advise no rebuild.
    return Different(what, *_evidence_advice(found))


def _evidence_advice(found: Verification) -> Iterator[str]:
    if found.advice is not None:
        yield found.advice.message
    yield "end the control plane's programs (./dev down), then copy the database: its files, or pg_dump"
    if tables := sorted({each.table for each in found.differences if each.kind == "ledger"}):
        yield f"{', '.join(tables)}: written only by appends; find out what changed it, and compare with a backup"


def _rebuild_advice(here: Session, tables: Sequence[str]) -> str:
    known = [decode(item, Projection) for item in here.client.items("/v1/projections")]
    names = [each.name for each in known if set(each.tables) & set(tables)]
    if not names:
        return f"no projection fills {', '.join(tables)}: find out what changed it"
    return f"rebuild them from the ledger: sliceplane projections rebuild {' '.join(names)}"


@commands.command()
def skip(
    context: typer.Context,
    *,
    name: Name,
    position: Annotated[int, typer.Argument(min=1, metavar="POSITION", help="Of the event that stops it.")],
    reason: Annotated[str, typer.Option(help="Why; it stands in the log beside your name.")],
    as_json: AsJson = False,
) -> None:
    """Have a stopped projection pass over the event that stops it, now and in every rebuild."""
    with session(context, json=as_json) as here:
        body = {"position": position, "reason": reason}
        _show(here, [msgspec.Raw(here.client.post(projection_path(name, "skip"), body))])


@commands.command()
def retry(context: typer.Context, *, name: Name, as_json: AsJson = False) -> None:
    """Have a stopped projection try the event again, once its cause is mended."""
    with session(context, json=as_json) as here:
        _show(here, [msgspec.Raw(here.client.post(projection_path(name, "retry")))])


def _show(here: Session, items: Iterable[msgspec.Raw]) -> None:
    if here.screen.json:
        here.screen.documents(items)
    else:
        here.screen.rows(pages.projections(decode(item, Projection) for item in items))
