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
from control_plane.cli.polling import continuing
from control_plane.cli.session import Session, session
from control_plane.cli.waiting import RETRY_SECONDS

commands = typer.Typer(no_args_is_help=True)
_STILL_OPEN: Final = frozenset({"due", "sent", "waiting"})
_STREAMS: Final = ("allocation-", "task-")
TaskId = Annotated[
    str, typer.Argument(metavar="TASK", help="Id of a task, as listed by `sliceplane tasks list`.")
]


def _only(what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=f"Only tasks of this {what}.", show_default=False)
    return option


@commands.command("list")
def list_tasks(
    context: typer.Context,
    *,
    node: Annotated[str | None, _only("node")] = None,
    slot: Annotated[str | None, _only("slot")] = None,
    allocation: Annotated[str | None, _only("allocation")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only tasks in this state, such as failed; repeatable.", show_default=False),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only tasks of this kind, such as slice.apply; repeatable.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of tasks, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the tasks of nodes with their state."""
    picked: Params = {"node": node, "slot": slot, "allocation": allocation, "state": state, "kind": kind}
    with session(context, json=as_json) as current:
        items = current.client.items("/v1/tasks", picked, limit)
        if as_json:
            current.screen.documents(items)
        else:
            current.screen.rows(tasks.tasks(decode(item, Task) for item in items))


@commands.command()
def show(context: typer.Context, *, task: TaskId, as_json: AsJson = False) -> None:
    """Show a task: its state, progress and result."""
    with session(context, json=as_json) as current:
        _show(current, current.client.get(task_path(task)))


@commands.command()
def create(
    context: typer.Context,
    *,
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="Kind of task, such as node.verify or drift.report.")
    ],
    place: Annotated[str, typer.Argument(metavar="PLACE", help="A slot such as lab-a/0, or a node.")],
    wait_for_it: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the task is done.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Request an inspection or repair by a node. Exit code 5 if the task fails."""
    named = "slot_id" if "/" in place else "node_id"
    with session(context, json=as_json) as current:
        raw = current.client.post("/v1/tasks", {"kind": kind, named: place})
        if wait_for_it:
            _wait(current, decode(raw, Task).id)
        else:
            _show(current, raw)


@commands.command()
def retry(
    context: typer.Context,
    *,
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="Id of a task, or a parked stream's name (`tasks parked`).")
    ],
    as_json: AsJson = False,
) -> None:
    """Retry a failed task, or a parked stream at once."""
    with session(context, json=as_json) as current:
        if not task.startswith(_STREAMS):
            _show(current, current.client.post(task_path(task, "retry")))
            return
        raw = msgspec.Raw(current.client.post(parked_path(task, "retry")))
        if as_json:
            current.screen.document(raw)
        else:
            current.screen.rows(tasks.parked([decode(raw, Parked)]))


@commands.command()
def cancel(context: typer.Context, *, task: TaskId, as_json: AsJson = False) -> None:
    """Cancel a task. If it is the bring-up of a slice, its allocation fails and the slice is removed."""
    with session(context, json=as_json) as current:
        _show(current, current.client.post(task_path(task, "cancel")))


@commands.command()
def watch(context: typer.Context, *, task: TaskId, as_json: AsJson = False) -> None:
    """Follow the events and progress steps of a task until it ends. Exit code 5 if it failed."""
    with session(context, json=as_json) as current:
        _wait(current, task)


@commands.command()
def parked(context: typer.Context, *, as_json: AsJson = False) -> None:
    """List event streams that the control plane cannot process, with the error. They are retried automatically."""
    with session(context, json=as_json) as current:
        items = current.client.items("/v1/parked")
        if as_json:
            current.screen.documents(items)
        else:
            current.screen.rows(tasks.parked(decode(item, Parked) for item in items))


def _wait(current: Session, task: str) -> None:
    """Follow a task until it ends, and show it. Raises `TaskNotDone` if it did not succeed."""
    with continuing(
        f"task {task}",
        f"watch the task: sliceplane tasks watch {task}",
        f"cancel the task: sliceplane tasks cancel {task}",
    ):
        raw = _until_over(current, task)
    _show(current, raw)
    found = decode(raw, Task)
    if found.state != "done":
        reason = f": {found.reason.message} [{found.reason.code}]" if found.reason else ""
        # The bring-up of a slice is not retried, and a superseded task is obsolete.
        is_final = found.kind == "slice.apply" or found.state == "superseded"
        advice = () if is_final else (f"retry: sliceplane tasks retry {task}",)
        raise TaskNotDone(f"task {task} is {found.state}{reason}", *advice)


def _until_over(current: Session, task: str) -> bytes:
    shown: set[str] = set()

    def step(raw: bytes) -> None:
        now = decode(raw, Step)
        if now.step not in shown:
            shown.add(now.step)
            current.screen.note(words.step(now.step, now.number, now.of))

    path = task_path(task)
    raw = current.client.get(path)
    if decode(raw, Task).state not in _STILL_OPEN:
        return raw
    for event in Follower(
        current.client, task_path(task, "watch"), retry_seconds=RETRY_SECONDS, on_progress=step
    ):
        current.screen.note(event_line.line(decode(event, Event), of=task).plain)
        raw = current.client.get(path)
        if decode(raw, Task).state not in _STILL_OPEN:
            return raw
    raise AssertionError("the event stream of a task must not end without a failure")


def _show(current: Session, raw: bytes) -> None:
    if current.screen.json:
        current.screen.document(raw)
    else:
        current.screen.page(tasks.task(decode(raw, Task)))
