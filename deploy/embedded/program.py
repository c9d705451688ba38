"""`./dev up [--once] [--simulated] [--state DIR]`, `./dev down [--state DIR]` and `./dev reset [--state DIR] [--yes]`.

Without a folder, `down` and `reset` act on both folders that `up` uses by default.
Exit codes: 0 done, 1 something was left behind, did not start or was declined, 2 wrong usage, 130 interrupted.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx

from deploy.embedded.client import ApiRefused
from deploy.embedded.layout import (
    AlreadyRunning,
    Hold,
    Layout,
    OtherFolder,
    OtherNodes,
    default_state,
    holder,
)
from deploy.embedded.nodes import GuestUnusable, sweep_leftovers
from deploy.embedded.postgres_cluster import PostgresUnavailable
from deploy.embedded.redis import RedisDidNotStart, RedisNotFound
from deploy.embedded.screen import Screen
from deploy.embedded.stack import StackFailed
from deploy.embedded.story import StoryFailed
from deploy.embedded.up import up
from deploy.setup.interrupts import INTERRUPTED

DOWN_SECONDS: Final = 60.0
FAILURES: Final = (
    AlreadyRunning,
    ApiRefused,
    GuestUnusable,
    OtherFolder,
    OtherNodes,
    PostgresUnavailable,
    RedisDidNotStart,
    RedisNotFound,
    StackFailed,
    StoryFailed,
    httpx.HTTPError,
    subprocess.CalledProcessError,
    subprocess.TimeoutExpired,
    OSError,
)


def main() -> int:
    arguments = parsed(sys.argv[1:])
    screen = Screen()
    meant = layouts(arguments)
    layout = meant[0]
    try:
        if arguments.verb == "down":
            return _down(meant, screen)
        if arguments.verb == "reset":
            return reset(meant, screen, confirmed=arguments.yes)
        return up(layout, screen, once=arguments.once, simulated=arguments.simulated)
    except KeyboardInterrupt:
        return INTERRUPTED
    except FAILURES as error:
        screen.bad(str(error))
        screen.note(_advice(error, layout))
        return 1


def parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "down", "reset"):
        state = verbs.add_parser(verb)
        state.add_argument(
            "--state",
            type=Path,
            metavar="DIR",
            help=f"what is kept (default: {default_state()}, and {default_state(simulated=True)} for --simulated)",
        )
    verbs.choices["up"].add_argument(
        "--once", action="store_true", help="release, check, stop and say the verdict"
    )
    verbs.choices["up"].add_argument(
        "--simulated", action="store_true", help="simulated nodes even where real ones can run"
    )
    verbs.choices["reset"].add_argument("--yes", action="store_true", help="do not ask for confirmation")
    return parser.parse_args(words)


def layouts(arguments: argparse.Namespace) -> list[Layout]:
    """The state folder that `up` works on; for `down`, each of those that may be meant."""
    if arguments.state is not None:
        return [Layout(arguments.state.resolve())]
    if arguments.verb == "up":
        return [Layout(default_state(simulated=arguments.simulated).resolve())]
    return [Layout(default_state(simulated=simulated).resolve()) for simulated in (False, True)]


def _down(meant: Sequence[Layout], screen: Screen) -> int:
    """End what runs on these state folders; those that are not there are not spoken of unless none is."""
    found = [layout for layout in meant if layout.state.exists()] or meant[:1]
    return max(_end(layout, screen) for layout in found)


def _end(layout: Layout, screen: Screen) -> int:
    """Ask a running `up` to end, and wait until it has."""
    pid = holder(layout)
    if pid is None:
        left = _swept(layout)
        screen.say(f"nothing runs on {layout.state}{'; removed ' + ', '.join(left) if left else ''}")
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_SECONDS
    while holder(layout) is not None:
        if time.monotonic() > deadline:
            screen.bad(f"process {pid} did not end within {DOWN_SECONDS:.0f} s")
            return 1
        time.sleep(0.1)
    screen.say(f"stopped what ran on {layout.state}")
    return 0


def reset(meant: Sequence[Layout], screen: Screen, *, confirmed: bool) -> int:
    """Empty the state folders: ledger, keys, images and nodes. Raises `AlreadyRunning` while `up` runs on one."""
    found = [layout for layout in meant if layout.state.is_dir() and any(layout.state.iterdir())]
    for layout in found:
        if not layout.is_ours():
            screen.bad(
                f"{layout.state} is not a state folder: ./dev up did not make it. Nothing was deleted."
            )
            return 1
    if not found:
        screen.say(f"{', '.join(str(layout.state) for layout in meant)}: already empty")
        return 0
    with contextlib.ExitStack() as held:
        for layout in found:
            held.enter_context(Hold(layout))
        if not confirmed and not _confirms(found):
            screen.bad("not confirmed; nothing was deleted")
            return 1
        for layout in found:
            sweep_leftovers(layout)
            layout.remove_run()
            layout.empty()
            screen.say(f"{layout.state} is empty; the next ./dev up starts with a new ledger")
    return 0


def _confirms(found: Sequence[Layout]) -> bool:
    folders = " and ".join(str(layout.state) for layout in found)
    question = f"Delete everything in {folders}, the ledger and all keys included? Type yes: "
    try:
        return input(question).strip().lower() == "yes"
    except EOFError:
        return False


def _advice(error: Exception, layout: Layout) -> str:
    """The next step for the person who reads the error."""
    match error:
        case AlreadyRunning() | OtherFolder() | OtherNodes() | RedisNotFound():
            return "nothing was changed"
        case httpx.HTTPError():
            return f"the API did not answer in time: see {layout.logs / 'api.log'}, then run ./dev up again"
        case _:
            return f"the logs are in {layout.logs}; the state is kept, so ./dev up can be run again"


def _swept(layout: Layout) -> list[str]:
    """Remove what a killed `up` left on this machine; returns the names. Raises `AlreadyRunning`."""
    if not layout.is_ours():
        return []
    with Hold(layout):
        return [*sweep_leftovers(layout), *layout.remove_run()]
