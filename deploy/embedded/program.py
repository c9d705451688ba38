"""`./dev up [--once] [--simulated] [--state DIR]` and `./dev down [--state DIR]`, which without a folder ends what runs
on either of the two that `up` takes by default.

Exit codes: 0 as promised, 1 something was left behind or did not come up, 2 wrong usage, 130 interrupted.
"""

import argparse
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
from deploy.embedded.layout import AlreadyRunning, Hold, Layout, OtherNodes, default_state, holder
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
        return up(layout, screen, once=arguments.once, simulated=arguments.simulated)
    except KeyboardInterrupt:
        return INTERRUPTED
    except FAILURES as error:
        screen.bad(str(error))
        screen.note(f"logs are in {layout.logs}")
        return 1


def parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "down"):
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


def _swept(layout: Layout) -> list[str]:
    """Remove what a killed `up` left on this machine; returns the names. Raises `AlreadyRunning`."""
    if not layout.state.exists():
        return []
    with Hold(layout):
        return [*sweep_leftovers(layout), *layout.remove_run()]
