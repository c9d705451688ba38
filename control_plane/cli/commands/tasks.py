"""Commands of `sliceplane tasks`: list, request, retry, cancel and watch the tasks of nodes."""

from typing import Annotated, Final

import typer
from msgspec import UNSET

from control_plane.cli.failures import TaskNotDone
from control_plane.cli.options import Output, Timeout
from control_plane.cli.pages import event_line, tasks, words
from control_plane.cli.screen import Format
from control_plane.cli.session import Session, session
from control_plane.cli.waiting import RETRY_SECONDS, continuing, deadline_of
from control_plane.client import calls
from control_plane.client.answers import Step, Task, decode
from control_plane.client.bodies import RequestTask
from control_plane.client.exchange import Reply
from control_plane.client.streams import Following
from control_plane.client.waits import UNFINISHED

commands = typer.Typer(no_args_is_help=True)
_STREAMS: Final = ("allocation-", "task-", "node-")
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
    output: Output = Format.TABLE,
) -> None:
    """List the tasks of nodes with their state."""
    with session(context, output) as current:
        picked = calls.tasks(node_name=node, slot=slot, allocation_name=allocation, states=state, kinds=kind)
        current.show_list(picked, tasks.tasks, limit)


@commands.command()
def show(context: typer.Context, *, task: TaskId, output: Output = Format.TABLE) -> None:
    """Show a task: its state, progress and result."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.task(task)), tasks.task)


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
    timeout: Timeout = None,
    output: Output = Format.TABLE,
) -> None:
    """Request an inspection or repair by a node. Exit code 5 if the task fails."""
    slot, node = (place, UNSET) if "/" in place else (UNSET, place)
    with session(context, output) as current:
        reply = current.send(calls.request_task(RequestTask(kind=kind, slot_id=slot, node_id=node)))
        if wait_for_it:
            _wait(current, reply.value.id, timeout)
        else:
            current.screen.one(reply, tasks.task)


@commands.command()
def retry(
    context: typer.Context,
    *,
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="Id of a task, or a parked stream's name (`tasks parked`).")
    ],
    output: Output = Format.TABLE,
) -> None:
    """Retry a failed task, or a parked stream at once."""
    with session(context, output) as current:
        if not task.startswith(_STREAMS):
            current.screen.one(current.send(calls.retry_task(task)), tasks.task)
            return
        current.screen.one(current.send(calls.retry_parked(task)), lambda found: tasks.parked([found]))


@commands.command()
def cancel(context: typer.Context, *, task: TaskId, output: Output = Format.TABLE) -> None:
    """Cancel a task. If it is the bring-up of a slice, its allocation fails and the slice is removed."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.cancel_task(task)), tasks.task)


@commands.command()
def watch(
    context: typer.Context, *, task: TaskId, timeout: Timeout = None, output: Output = Format.TABLE
) -> None:
    """Follow the events and progress steps of a task until it ends. Exit code 5 if it failed."""
    with session(context, output) as current:
        _wait(current, task, timeout)


@commands.command()
def parked(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List event streams that the control plane cannot process, with the error. They are retried automatically."""
    with session(context, output) as current:
        current.show_list(calls.parked(), tasks.parked)


def _wait(current: Session, task: str, timeout: float | None) -> None:
    """Follow a task until it ends, and show it. Raises `TaskNotDone` if it did not succeed."""
    with continuing(
        f"task {task}",
        f"watch the task: sliceplane tasks watch {task}",
        f"cancel the task: sliceplane tasks cancel {task}",
    ):
        reply = _until_over(current, task, timeout)
    current.screen.one(reply, tasks.task)
    found = reply.value
    if found.state != "done":
        reason = f": {found.reason.message} [{found.reason.code}]" if found.reason else ""
        # The bring-up of a slice is not retried, and a superseded task is obsolete.
        is_final = found.kind == "slice.apply" or found.state == "superseded"
        advice = () if is_final else (f"retry: sliceplane tasks retry {task}",)
        raise TaskNotDone(f"task {task} did not succeed; its state is {found.state}{reason}", *advice)


def _until_over(current: Session, task: str, timeout: float | None) -> Reply[Task]:
    shown: set[str] = set()

    def step(raw: bytes) -> None:
        now = decode(raw, Step)
        if now.step not in shown:
            shown.add(now.step)
            current.screen.note(words.step(now.step, now.number, now.of))

    following = Following(retry_seconds=RETRY_SECONDS, deadline=deadline_of(timeout), on_progress=step)
    watched = current.follow(calls.watch_task(task), following)
    reply = current.send(calls.task(task))
    while reply.value.state in UNFINISHED:
        current.screen.note(event_line.line(next(watched).value, of=task).plain)
        reply = current.send(calls.task(task))
    return reply
