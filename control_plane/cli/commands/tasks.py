"""`sliceplane tasks`."""

from typing import Annotated, Final

import msgspec
import typer

from control_plane.cli.answers import Event, Parked, Step, Task, decode
from control_plane.cli.client import Params
from control_plane.cli.failures import TaskNotDone
from control_plane.cli.follow import Follower
from control_plane.cli.options import AsJson
from control_plane.cli.pages import event_line, tasks, words
from control_plane.cli.paths import parked_path, task_path
from control_plane.cli.polling import going_on
from control_plane.cli.session import Session, session
from control_plane.cli.waiting import PATIENCE

commands = typer.Typer(no_args_is_help=True)
_STILL_OPEN: Final = frozenset({"due", "sent", "waiting"})
_STREAMS: Final = ("allocation-", "task-")
TaskId = Annotated[
    str, typer.Argument(metavar="TASK", help="Id of a task, as `sliceplane tasks list` shows it.")
]


def _only(what: str) -> typer.models.OptionInfo:
    told: typer.models.OptionInfo = typer.Option(help=f"Only of this {what}.", show_default=False)
    return told


@commands.command("list")
def list_tasks(
    context: typer.Context,
    *,
    node: Annotated[str | None, _only("node")] = None,
    slot: Annotated[str | None, _only("slot")] = None,
    allocation: Annotated[str | None, _only("allocation")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only in this state, such as failed; repeatable.", show_default=False),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only of this kind, such as slice.apply; repeatable.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """What nodes are to do, did, or would not do."""
    picked: Params = {"node": node, "slot": slot, "allocation": allocation, "state": state, "kind": kind}
    with session(context, json=as_json) as here:
        items = here.client.items("/v1/tasks", picked, limit)
        if as_json:
            here.screen.documents(items)
        else:
            here.screen.rows(tasks.tasks(decode(item, Task) for item in items))


@commands.command()
def show(context: typer.Context, *, task: TaskId, as_json: AsJson = False) -> None:
    """One task: how it stands, and what came of it."""
    with session(context, json=as_json) as here:
        _show(here, here.client.get(task_path(task)))


@commands.command()
def ask(
    context: typer.Context,
    *,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Such as node.verify or drift.report.")],
    place: Annotated[str, typer.Argument(metavar="PLACE", help="A slot such as lab-a/0, or a node.")],
    wait_for_it: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")] = True,
    as_json: AsJson = False,
) -> None:
    """Have a node look at something or mend it, once. Ends with code 5 if it cannot."""
    named = "slot_id" if "/" in place else "node_id"
    with session(context, json=as_json) as here:
        raw = here.client.post("/v1/tasks", {"kind": kind, named: place})
        if wait_for_it:
            _wait(here, decode(raw, Task).id)
        else:
            _show(here, raw)


@commands.command()
def retry(
    context: typer.Context,
    *,
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="Id of a task, or a parked stream's name (`tasks parked`).")
    ],
    as_json: AsJson = False,
) -> None:
    """Have a task tried again that came to a bad end, or a parked stream looked at again at once."""
    with session(context, json=as_json) as here:
        if not task.startswith(_STREAMS):
            _show(here, here.client.post(task_path(task, "retry")))
            return
        raw = msgspec.Raw(here.client.post(parked_path(task, "retry")))
        if as_json:
            here.screen.document(raw)
        else:
            here.screen.rows(tasks.parked([decode(raw, Parked)]))


@commands.command()
def cancel(context: typer.Context, *, task: TaskId, as_json: AsJson = False) -> None:
    """Stop a task. Of an allocation that is coming up: the allocation fails, and is taken away."""
    with session(context, json=as_json) as here:
        _show(here, here.client.post(task_path(task, "cancel")))


@commands.command()
def watch(context: typer.Context, *, task: TaskId, as_json: AsJson = False) -> None:
    """What happens to a task, with its steps, until it is over. Ends with code 5 if it was not done."""
    with session(context, json=as_json) as here:
        _wait(here, task)


@commands.command()
def parked(context: typer.Context, *, as_json: AsJson = False) -> None:
    """Streams that the control plane cannot go on with, and why. It looks again by itself; `retry` makes it at once."""
    with session(context, json=as_json) as here:
        items = here.client.items("/v1/parked")
        if as_json:
            here.screen.documents(items)
        else:
            here.screen.rows(tasks.parked(decode(item, Parked) for item in items))


def _wait(here: Session, task: str) -> None:
    """Show what happens until the task is over. Raises `TaskNotDone`."""
    with going_on(
        f"task {task}", f"watch it: sliceplane tasks watch {task}", f"stop it: sliceplane tasks cancel {task}"
    ):
        raw = _until_over(here, task)
    _show(here, raw)
    found = decode(raw, Task)
    if found.state != "done":
        why = f": {found.reason.message} [{found.reason.code}]" if found.reason else ""
        # A slice is brought up once, and what a slot was told otherwise since is over.
        is_final = found.kind == "slice.apply" or found.state == "superseded"
        advice = () if is_final else (f"try again: sliceplane tasks retry {task}",)
        raise TaskNotDone(f"task {task} is {found.state}{why}", *advice)


def _until_over(here: Session, task: str) -> bytes:
    told: set[str] = set()

    def step(raw: bytes) -> None:
        now = decode(raw, Step)
        if now.step not in told:
            told.add(now.step)
            here.screen.note(words.step(now.step, now.number, now.of))

    path = task_path(task)
    raw = here.client.get(path)
    if decode(raw, Task).state not in _STILL_OPEN:
        return raw
    for event in Follower(here.client, task_path(task, "watch"), patience=PATIENCE, on_progress=step):
        here.screen.note(event_line.line(decode(event, Event), of=task).plain)
        raw = here.client.get(path)
        if decode(raw, Task).state not in _STILL_OPEN:
            return raw
    raise AssertionError("a stream is followed for ever")


def _show(here: Session, raw: bytes) -> None:
    if here.screen.json:
        here.screen.document(raw)
    else:
        here.screen.page(tasks.task(decode(raw, Task)))
