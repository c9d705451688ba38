"""What `./dev` can do, each verb a program of the environment that takes this process's place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deploy.setup.repository import ENVIRONMENT, ROOT


@dataclass(frozen=True)
class Verb:
    """`module` is run with `defaults`; `at_root` when its arguments are paths of the repository."""

    usage: str
    explanation: str
    module: str
    defaults: tuple[str, ...] = ()
    at_root: bool = True


VERBS: Final = {
    "up": Verb(
        "up [--once] [--simulated] [--state DIR]",
        "start everything and show one allocation; with --once release it, check, and stop",
        "deploy.embedded",
        ("up",),
        at_root=False,
    ),
    "down": Verb("down [--state DIR]", "stop what `up` started", "deploy.embedded", ("down",), at_root=False),
    "reset": Verb(
        "reset [--state DIR] [--yes]",
        "delete everything in the state folder of `up`, after confirmation",
        "deploy.embedded",
        ("reset",),
        at_root=False,
    ),
    "test": Verb("test [NAME | PYTEST ARGS]", "run the tests, or those of tests/NAME", "pytest"),
    "torture": Verb(
        "torture [--seed N] [--only P11 ...]",
        "hold the promises at their full counts",
        "tests.torture",
    ),
    "check": Verb(
        "check [NAME ...]",
        "format, lint, types, imports, layout, migrations, events, tasks, drift",
        "deploy.checks",
    ),
    "bench": Verb(
        "bench NAME [--json] [--resume]",
        "measure and print a table, or one JSON object a line; --help has the names",
        "bench",
    ),
    "events": Verb(
        "events",
        "write docs/events.md anew from the events' types",
        "deploy.checks.event_catalogue",
        ("--write",),
    ),
    "tasks": Verb(
        "tasks",
        "write docs/tasks.md anew from the catalogue of tasks",
        "deploy.checks.task_catalogue",
        ("--write",),
    ),
    "drift": Verb(
        "drift",
        "write docs/drift.md anew from the catalogue of drift",
        "deploy.checks.drift_catalogue",
        ("--write",),
    ),
    "lock": Verb("lock [PACKAGE ...]", "resolve requirements anew, or raise the named ones", "deploy.locks"),
}


WHOLE_SUITE: Final = ("-n", "3", "--dist", "loadfile", "--durations", "10")
"""On two cores, since most tests wait; a file stays with one worker, since its tests share servers."""


def command(name: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a verb."""
    verb = VERBS[name]
    given = [_test_folder(argument) for argument in arguments] if name == "test" else list(arguments)
    if name == "test" and not given:
        given = list(WHOLE_SUITE)
    return [str(ENVIRONMENT / "bin" / "python"), "-m", verb.module, *verb.defaults, *given]


def _test_folder(argument: str) -> str:
    is_name = argument.isidentifier() and (ROOT / "tests" / argument).is_dir()
    return f"tests/{argument}" if is_name else argument


def usage() -> str:
    """The help text."""
    width = max(len(verb.usage) for verb in VERBS.values())
    lines = [f"  ./dev {verb.usage:<{width}}  {verb.explanation}" for verb in VERBS.values()]
    return "\n".join(["Sets this machine up when that is needed, then:", "", *lines]) + "\n"
