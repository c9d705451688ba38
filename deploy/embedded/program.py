"""`./dev up [--once] [--simulated] [--demo] [--state DIR]`, `./dev down [--state DIR]` and `./dev reset [--state DIR]
[--yes]`.

Without --state, `down` and `reset` act on both default state folders of `up`.
Exit codes: 0 success; 1 start failed, leftovers found, or confirmation declined; 2 wrong usage; 130 interrupted.
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

from deploy.demo.fleet import DemoRefused
from deploy.demo.plan import Sizes
from deploy.embedded.client import ApiRefused
from deploy.embedded.demonstration import DemonstrationFailed
from deploy.embedded.layout import (
    AlreadyRunning,
    Layout,
    NodeKindMismatch,
    NotAStateFolder,
    StateFolderLock,
    default_state,
    lock_holder,
)
from deploy.embedded.nodes import GuestUnusable, sweep_leftovers
from deploy.embedded.postgres_cluster import PostgresUnavailable
from deploy.embedded.redis import RedisDidNotStart, RedisNotFound
from deploy.embedded.screen import Screen
from deploy.embedded.stack import StackFailed
from deploy.embedded.up import up
from deploy.setup.interrupts import INTERRUPTED

DOWN_SECONDS: Final = 60.0
MOST_DEMO_NODES: Final = 250
"""Maximum number of demo nodes: as many as there are subnets besides those of the two nodes that `./dev up` starts."""
MOST_DEMO_DAYS: Final = 90
FAILURES: Final = (
    AlreadyRunning,
    ApiRefused,
    DemoRefused,
    GuestUnusable,
    NotAStateFolder,
    NodeKindMismatch,
    PostgresUnavailable,
    RedisDidNotStart,
    RedisNotFound,
    StackFailed,
    DemonstrationFailed,
    httpx.HTTPError,
    subprocess.CalledProcessError,
    subprocess.TimeoutExpired,
    OSError,
)


def main() -> int:
    arguments = parsed(sys.argv[1:])
    screen = Screen()
    candidates = layouts(arguments)
    layout = candidates[0]
    try:
        if arguments.verb == "down":
            return _down(candidates, screen)
        if arguments.verb == "reset":
            return reset(candidates, screen, confirmed=arguments.yes)
        demo = Sizes(arguments.demo_nodes, arguments.demo_days) if arguments.demo else None
        return up(layout, screen, once=arguments.once, simulated=arguments.simulated, demo=demo)
    except KeyboardInterrupt:
        return INTERRUPTED
    except FAILURES as error:
        screen.error(str(error))
        screen.detail(_advice(error, layout))
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
            help=f"state folder (default: {default_state()}, or {default_state(simulated=True)} with --simulated)",
        )
    verbs.choices["up"].add_argument(
        "--once",
        action="store_true",
        help="release the slice, check the nodes for leftovers, and stop",
    )
    verbs.choices["up"].add_argument(
        "--simulated", action="store_true", help="use simulated nodes even if this machine supports real ones"
    )
    verbs.choices["up"].add_argument(
        "--demo",
        action="store_true",
        help="simulated nodes, and weeks of history of 200 more, recorded first in an empty state folder",
    )
    verbs.choices["up"].add_argument(
        "--demo-nodes",
        type=int,
        default=Sizes().nodes,
        metavar="N",
        help="number of nodes of --demo, at most 250",
    )
    verbs.choices["up"].add_argument(
        "--demo-days",
        type=float,
        default=Sizes().days,
        metavar="DAYS",
        help="days of history that --demo creates",
    )
    verbs.choices["reset"].add_argument("--yes", action="store_true", help="skip the confirmation")
    arguments = parser.parse_args(words)
    if arguments.verb == "up":
        if not (0 < arguments.demo_nodes <= MOST_DEMO_NODES and 1 <= arguments.demo_days <= MOST_DEMO_DAYS):
            parser.error(
                f"--demo-nodes must be 1 to {MOST_DEMO_NODES}, and --demo-days 1 to {MOST_DEMO_DAYS}"
            )
        arguments.simulated |= arguments.demo
    return arguments


def layouts(arguments: argparse.Namespace) -> list[Layout]:
    """Return the state folder that `up` uses, or every folder that `down` and `reset` act on."""
    if arguments.state is not None:
        return [Layout(arguments.state.resolve())]
    if arguments.verb == "up":
        return [Layout(default_state(simulated=arguments.simulated).resolve())]
    return [Layout(default_state(simulated=simulated).resolve()) for simulated in (False, True)]


def _down(candidates: Sequence[Layout], screen: Screen) -> int:
    """Stop the `up` processes of these state folders. Missing folders are skipped unless all of them are missing."""
    found = [layout for layout in candidates if layout.state.exists()] or candidates[:1]
    return max(_stop(layout, screen) for layout in found)


def _stop(layout: Layout, screen: Screen) -> int:
    """Signal a running `up` to end, and wait until it has ended."""
    pid = lock_holder(layout)
    if pid is None:
        left = _sweep(layout)
        screen.show(f"nothing runs on {layout.state}{'; removed ' + ', '.join(left) if left else ''}")
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_SECONDS
    while lock_holder(layout) is not None:
        if time.monotonic() > deadline:
            screen.error(
                f"process {pid} did not exit within {DOWN_SECONDS:.0f} s; end it with kill -9 {pid}, then run ./dev down"
            )
            return 1
        time.sleep(0.1)
    screen.show(f"stopped everything that ran on {layout.state}")
    return 0


def reset(candidates: Sequence[Layout], screen: Screen, *, confirmed: bool) -> int:
    """Delete ledger, keys, images and nodes of the state folders. Raises `AlreadyRunning` while `up` runs on one."""
    found = [layout for layout in candidates if layout.state.is_dir() and any(layout.state.iterdir())]
    for layout in found:
        if not layout.is_state_folder():
            screen.error(
                f"{layout.state} is not a state folder, because ./dev up did not create it. Nothing was deleted."
            )
            return 1
    if not found:
        screen.show(f"{', '.join(str(layout.state) for layout in candidates)}: already empty")
        return 0
    with contextlib.ExitStack() as held:
        for layout in found:
            held.enter_context(StateFolderLock(layout))
        if not confirmed and not _confirms(found):
            screen.error("reset was not confirmed; nothing was deleted")
            return 1
        for layout in found:
            sweep_leftovers(layout)
            layout.remove_run()
            layout.empty()
            screen.show(f"{layout.state} is now empty; the next ./dev up starts with a new ledger")
    return 0


def _confirms(found: Sequence[Layout]) -> bool:
    folders = " and ".join(str(layout.state) for layout in found)
    question = f"Delete everything in {folders}, including the ledger and all keys? Type yes to confirm: "
    try:
        return input(question).strip().lower() == "yes"
    except EOFError:
        return False


def _advice(error: Exception, layout: Layout) -> str:
    """Return the advice that is printed below an error of `./dev up`, `down` or `reset`."""
    match error:
        case AlreadyRunning() | DemoRefused() | NotAStateFolder() | NodeKindMismatch() | RedisNotFound():
            return "Nothing was changed."
        case httpx.HTTPError():
            return f"The API did not respond in time. See {layout.logs / 'api.log'}, then run ./dev up again."
        case _:
            return f"The logs are in {layout.logs}. The state is kept; run ./dev up again."


def _sweep(layout: Layout) -> list[str]:
    """Remove the network links and the run folder that a killed `up` left behind, and return their names.

    Raises `AlreadyRunning`.
    """
    if not layout.is_state_folder():
        return []
    with StateFolderLock(layout):
        return [*sweep_leftovers(layout), *layout.remove_run()]
