"""The verbs of `./dev`. Each is a program in the Python environment that replaces this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deploy.setup.repository import ENVIRONMENT, ROOT


@dataclass(frozen=True)
class Verb:
    """One verb of `./dev`: the Python module `module` runs with `defaults` and the user's arguments.

    `runs_in_root` is true if the arguments are paths relative to the repository, and `opens_pages` if it opens pages of
    the web console in Chromium.
    """

    usage: str
    explanation: str
    module: str
    defaults: tuple[str, ...] = ()
    runs_in_root: bool = True
    opens_pages: bool = False


VERBS: Final = {
    "up": Verb(
        "up [--once] [--simulated] [--demo] [--state DIR]",
        "start everything and create a slice; --once releases it, checks for leftovers and stops; --demo adds nodes "
        "with a history",
        "deploy.embedded",
        ("up",),
        runs_in_root=False,
    ),
    "down": Verb(
        "down [--state DIR]", "stop what `up` started", "deploy.embedded", ("down",), runs_in_root=False
    ),
    "reset": Verb(
        "reset [--state DIR] [--yes]",
        "delete everything in the state folder of `up`; --yes skips the confirmation",
        "deploy.embedded",
        ("reset",),
        runs_in_root=False,
    ),
    "screenshots": Verb(
        "screenshots [--state DIR] [--only PAGE ...] FOLDER",
        "make pictures of every page of the web console of a running `up --demo`, in Chromium",
        "deploy.screenshots",
        runs_in_root=False,
        opens_pages=True,
    ),
    "test": Verb(
        "test [NAME] [--all] [--affected [BASE]] [--random-order [SEED]] [PYTEST ARGS]",
        "run the fast tests and one in ten of the slow ones (--all: all), those of tests/NAME, or those that "
        "most directly depend on the changes since BASE (default: main)",
        "pytest",
        opens_pages=True,
    ),
    "torture": Verb(
        "torture [--seed N] [--only P11 ...]",
        "run the fault tests of the product's promises with all their cases",
        "tests.torture",
        opens_pages=True,
    ),
    "check": Verb(
        "check [NAME ...] [--without NAME ...]",
        "run checks: format, lint, types, imports, layout, migrations, events, tasks, drift, names, "
        "openapi, language, package",
        "deploy.checks",
    ),
    "bench": Verb(
        "bench NAME [--json] [--resume]",
        "run a benchmark; print a table, or one JSON object per line; --help lists the names",
        "bench",
        opens_pages=True,
    ),
    "events": Verb(
        "events",
        "regenerate docs/events.md from the event types",
        "deploy.checks.event_catalogue",
        ("--write",),
    ),
    "tasks": Verb(
        "tasks",
        "regenerate docs/tasks.md from the task catalogue",
        "deploy.checks.task_catalogue",
        ("--write",),
    ),
    "drift": Verb(
        "drift",
        "regenerate docs/drift.md from the drift catalogue",
        "deploy.checks.drift_catalogue",
        ("--write",),
    ),
    "names": Verb(
        "names",
        "regenerate docs/names/ and docs/codes.md, the names that other programs rely on",
        "deploy.checks.names",
        ("--write",),
    ),
    "openapi": Verb(
        "openapi",
        "record the OpenAPI document of a release in docs/openapi.json; print what breaks clients of the last one",
        "deploy.checks.openapi",
        ("--write",),
    ),
    "lock": Verb(
        "lock [PACKAGE ...]",
        "resolve the requirements into requirements/*.lock; upgrade the named packages",
        "deploy.locks",
    ),
}


WHOLE_SUITE: Final = ("-n", "4", "--dist", "loadfile", "--durations", "10")
"""Default arguments of pytest. Four workers for two cores, because most tests wait. All tests of a file run in the
same worker, because they share servers.
"""
ALL: Final = "--all"
SAMPLE: Final = ("--slow-share", "10")
"""Arguments of pytest that select one part of the slow tests for a run of the whole suite. With `ALL`, they are not
used.
"""


def command(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs the verb `name` of `./dev` with `arguments`."""
    verb = VERBS[name]
    given = [_test_folder(argument) for argument in arguments] if name == "test" else list(arguments)
    if name == "test":
        sample = () if ALL in given else SAMPLE
        given = [each for each in given if each != ALL]
        if _names_no_tests(given):
            given = [*WHOLE_SUITE, *sample, *given]
    return [str(ENVIRONMENT / "bin" / "python"), "-m", verb.module, *verb.defaults, *given]


def _names_no_tests(arguments: Sequence[str]) -> bool:
    """Return whether the arguments of `./dev test` select no tests: there are none, or only `--random-order [SEED]`."""
    order, *seed = arguments or ("--random-order",)
    return order.partition("=")[0] == "--random-order" and (
        not seed or (len(seed) == 1 and seed[0].isdigit())
    )


def _test_folder(argument: str) -> str:
    is_name = argument.isidentifier() and (ROOT / "tests" / argument).is_dir()
    return f"tests/{argument}" if is_name else argument


def usage() -> str:
    """Return the help text of `./dev`."""
    width = max(len(verb.usage) for verb in VERBS.values())
    lines = [f"  ./dev {verb.usage:<{width}}  {verb.explanation}" for verb in VERBS.values()]
    return "\n".join(["Set this machine up if necessary, then run a verb:", "", *lines]) + "\n"
