"""The registry of failpoints matches the code, and every effect in the code is enclosed by two failpoints.

An effect is what another program, or the next start of the same program, can observe:

- a step of a plan that runs (`step.run()`),
- the commit of a transaction that advances a checkpoint or appends events,
- a script that moves an order between a queue's lists,
- a file that is replaced durably (`replace_file`),
- reports that are delivered (`control_plane.report`).

Each effect is between two failpoints of the same function, so that tests can kill the program before and after
the effect.
"""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from control_plane.programs import SERVER
from deploy.embedded.children import installed_program
from tasks.failpoints import UnknownFailpoint, arm_from, failpoint
from tasks.workflows import FAILPOINTS, STEPS
from tests.checks.files import ROOT

PROGRAMS: Final = ("control_plane", "node_agent", "tasks")
MECHANISM: Final = {ROOT / "tasks" / "failpoints.py", ROOT / "node_agent" / "durable.py"}
MOVING: Final = {"ENQUEUE", "WITHDRAW", "FETCH", "SETTLE", "REQUEUE"}
"""Names of the Redis scripts that move an order between the lists of a queue."""
COMMANDS: Final = {"_enqueue"}
"""Functions that only build a command from a script and do not run it."""
WITHIN_STEPS: Final = {"node_agent/drivers/machines/kept_logs.py:keep"}
"""Functions that only a plan step calls: the failpoints of the step enclose their effects."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Effect = ast.expr | ast.stmt


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            if path not in MECHANISM:
                yield path, ast.parse(path.read_text())


def functions() -> Iterator[tuple[str, Function]]:
    for path, module in modules():
        for node in ast.walk(module):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.name}", node


def calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def called(call: ast.Call) -> str:
    """Return the source text of the function that a call expression calls, for instance `checkpoints.advance`."""
    return ast.unparse(call.func)


def texts(call: ast.Call) -> list[str]:
    """Return a list with the first argument of a call if it is a string literal, else an empty list."""
    given = call.args[0] if call.args else None
    return [given.value] if isinstance(given, ast.Constant) and isinstance(given.value, str) else []


def is_failpoint(call: ast.Call) -> bool:
    return called(call) in {"failpoint", "step_failpoint"}


def moves_a_checkpoint(node: ast.AST) -> bool:
    return any(called(call) in {"checkpoints.advance", "checkpoints.begin"} for call in calls(node))


def steps_run(function: Function) -> list[Effect]:
    return [call for call in calls(function) if called(call) == "step.run"]


def transactions(function: Function) -> list[Effect]:
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.AsyncWith)
        and any(ast.unparse(item.context_expr).endswith(".begin()") for item in node.items)
        and moves_a_checkpoint(node)
    ]


def commits(function: Function) -> list[Effect]:
    appends = [call.lineno for call in calls(function) if called(call) in {"append", "appending.send"}]
    ending = [call for call in calls(function) if called(call).endswith(".commit")]
    return [call for call in ending if appends and call.lineno > min(appends)]


def scripts(function: Function) -> list[Effect]:
    """Return the places in a function that run a Redis script which moves an order, or that call `_enqueue`."""
    if function.name in COMMANDS:
        return []
    named = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id in MOVING]
    return [*named, *(call for call in calls(function) if called(call).removeprefix("self.") in COMMANDS)]


def files(function: Function) -> list[Effect]:
    return [call for call in calls(function) if called(call) == "replace_file"]


def deliveries(function: Function) -> list[Effect]:
    return [call for call in calls(function) if called(call) == "control_plane.report"]


KINDS: Final[dict[str, Callable[[Function], list[Effect]]]] = {
    "a plan step that runs": steps_run,
    "a transaction that advances a checkpoint": transactions,
    "a transaction that appends events": commits,
    "a script that moves an order": scripts,
    "a file that is replaced durably": files,
    "reports that are delivered": deliveries,
}


def missing_sides(function: Function, effect: Effect) -> list[str]:
    """Return the sides of an effect ("before", "after") that have no failpoint in the function.

    The effect of a transaction is its commit, so the failpoint before the commit is inside the transaction.
    """
    lines = [call.lineno for call in calls(function) if is_failpoint(call)]
    first, last = effect.lineno, effect.end_lineno or effect.lineno
    inside = isinstance(effect, ast.AsyncWith)
    before = any(first < line <= last for line in lines) if inside else any(line < first for line in lines)
    after = any(line > last for line in lines)
    return [side for side, there in (("before", before), ("after", after)) if not there]


def test_failpoints_called_in_code_are_exactly_the_declared_failpoints() -> None:
    found = [
        name
        for _, module in modules()
        for call in calls(module)
        if called(call) == "failpoint"
        for name in texts(call) or [f"not a literal: {ast.unparse(call)}"]
    ]
    steps = {each.name for each in FAILPOINTS.values() if each.work in STEPS}
    assert set(found) == FAILPOINTS.keys() - steps
    assert len(found) == len(set(found)), "a failpoint is called in more than one place"


def test_steps_planned_by_the_node_agent_are_exactly_the_declared_steps() -> None:
    found = [
        name
        for path, module in modules()
        if path.is_relative_to(ROOT / "node_agent")
        for call in calls(module)
        if called(call) == "Step"
        for name in texts(call) or [f"not a literal: {ast.unparse(call)}"]
    ]
    assert set(found) == set(STEPS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_side_effect_of_the_product_code_is_between_two_failpoints(kind: str) -> None:
    effects = [
        (where, function, effect)
        for where, function in functions()
        if where not in WITHIN_STEPS
        for effect in KINDS[kind](function)
    ]
    assert effects, f"no effect of the kind '{kind}' found; if the code moved, update this test"
    bare = [
        f"{where}: no failpoint {' or '.join(sides)} the effect"
        for where, function, effect in effects
        if (sides := missing_sides(function, effect))
    ]
    assert bare == []


@pytest.mark.parametrize(
    "setting",
    [
        "intake.takn",
        "intake.taken@0",
        "intake.taken@x",
        "intake.taken,",
        "agent",
        "stop:",
        "stop:intake.takn",
    ],
)
def test_arming_an_unknown_failpoint_raises_an_error_with_its_name(setting: str) -> None:
    if setting.endswith(","):
        setting += "no.such.point"
    with pytest.raises(UnknownFailpoint, match=setting.rpartition(",")[2]):
        arm_from(setting)
    failpoint("intake.taken")  # this would end the process if the failpoint were armed


@pytest.mark.parametrize("armed", ["stop:intake.taken", "stop:intake.taken@2"])
def test_program_stops_at_an_armed_stop_failpoint_and_continues_after_sigcont(armed: str) -> None:
    visits = "failpoint('intake.taken'); " * (2 if armed.endswith("@2") else 1)
    program = f"from tasks.failpoints import arm_from, failpoint; arm_from('{armed}'); {visits}print('on')"
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as started:
        _, status = os.waitpid(started.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        started.send_signal(signal.SIGCONT)
        assert started.communicate()[0] == b"on\n"


@pytest.mark.parametrize("program", [(SERVER, "dispatcher"), ("sliceplane-agent", "no-such-file")])
def test_program_with_an_unknown_failpoint_prints_one_line_and_does_not_start(
    program: tuple[str, ...],
) -> None:
    ended = subprocess.run(
        installed_program(*program),
        cwd=ROOT,
        env={
            "SLICEPLANE_DATABASE_URL": "postgresql+psycopg://",
            "SLICEPLANE_REDIS_URL": "redis://",
            "SLICEPLANE_FAILPOINTS": "no.such.point",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    [line] = ended.stderr.splitlines()
    assert "no.such.point" in line
