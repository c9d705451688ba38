"""The control plane's programs.

Usage:
  python -m control_plane api             serve the REST API
  python -m control_plane dispatcher      send orders to nodes, and run timers
  python -m control_plane projector       fill the read models
  python -m control_plane issue-key NAME  make an admin's API key, and print it
  python -m control_plane --version

Settings come from the environment: SLICEPLANE_DATABASE_URL and SLICEPLANE_REDIS_URL are required, and the API and the
dispatcher need SLICEPLANE_SIGNING_KEY_FILE. control_plane/settings.py lists all of them; `./dev up` sets them itself.

Each program is one process, may be killed at any moment, and goes on from what is in Postgres when it starts again.
"""

import asyncio
import secrets
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final

import uvloop

from control_plane.api.server import CannotListen, serve
from control_plane.certificates import UnusableCertificate
from control_plane.commands.access import issue_key
from control_plane.database import DatabaseUnavailable
from control_plane.followers import run_dispatcher
from control_plane.projector.program import run_projector
from control_plane.sealing import NoSigningKey
from control_plane.settings import SettingsRefused, read_settings
from control_plane.version import release
from control_plane.wiring import Plane, configure_logs, plane, spare_collections
from events.fitness import UnfitServer
from tasks.failpoints import UnknownFailpoint

_USAGE: Final = "See python -m control_plane --help."
_SETTINGS: Final = (
    "Correct the environment variables; python -m control_plane --help names those that are required."
)
_DATABASE: Final = "Start PostgreSQL, or correct SLICEPLANE_DATABASE_URL."
_LISTEN: Final = "Stop what uses this address, or correct SLICEPLANE_LISTEN."

PROGRAMS: dict[str, Callable[[Plane], Awaitable[None]]] = {
    "api": serve,
    "dispatcher": run_dispatcher,
    "projector": run_projector,
}


def main() -> int:
    """Return the exit code: 1 if the program cannot start (with one sentence and advice on standard error) or the
    database server turns out to be unfit later; 2 for wrong usage.
    """
    try:
        return _command(sys.argv[1:])
    except* SettingsRefused as refused:
        _fail(f"The settings cannot be used: {refused.exceptions[0]}", _SETTINGS)
    except* DatabaseUnavailable as unavailable:
        _fail(f"The database cannot be used: {unavailable.exceptions[0]}", _DATABASE)
    except* UnfitServer as unfit:
        _fail(f"This PostgreSQL server cannot be used for the ledger: {'; '.join(_sentences(unfit))}")
    except* NoSigningKey as none:
        _fail(f"Orders cannot be signed: {none.exceptions[0]}")
    except* UnusableCertificate as unusable:
        _fail(f"A file for TLS cannot be used: {unusable.exceptions[0]}")
    except* CannotListen as cannot:
        _fail(f"The API cannot listen on {cannot.exceptions[0]}", _LISTEN)
    except* UnknownFailpoint as unknown:
        print(unknown.exceptions[0], file=sys.stderr)
    return 1


def _fail(sentence: str, *advice: str) -> None:
    print(" ".join((f"{sentence}.", *advice)), file=sys.stderr)


def _sentences(unfit: BaseExceptionGroup[UnfitServer]) -> list[str]:
    """Each reason once, whichever of the program's tasks met it."""
    found: dict[str, None] = {}
    for error in unfit.exceptions:
        told = _sentences(error) if isinstance(error, BaseExceptionGroup) else error.reasons
        found.update(dict.fromkeys(told))
    return [*found]


def _command(words: list[str]) -> int:
    match words:
        case [program] if program in PROGRAMS:
            return uvloop.run(_run(PROGRAMS[program]))
        case ["issue-key", name]:
            print(uvloop.run(_issue_key(name)))
            return 0
        case ["-h" | "--help"]:
            print(__doc__, end="")
            return 0
        case ["--version"]:
            print(f"control_plane {release()}")
            return 0
        case []:
            print(f"No program given.\n\n{_USAGE}", file=sys.stderr)
            return 2
        case _:
            print(f"Unknown arguments: {shlex.join(words)}.\n\n{_USAGE}", file=sys.stderr)
            return 2


async def _run(program: Callable[[Plane], Awaitable[None]]) -> int:
    settings = read_settings()
    configure_logs(settings.log)
    spare_collections()
    async with plane(settings) as made:
        running = asyncio.ensure_future(program(made))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            return 0
    return 0


async def _issue_key(name: str) -> str:
    """Make an admin API key, record its hash, and return the key: it is shown this once."""
    key = f"sp_{secrets.token_urlsafe(32)}"
    settings = read_settings()
    # Unconfigured, a log line would go to standard output, where the key is read.
    configure_logs(settings.log)
    async with plane(settings, pool=1) as made:
        await made.handle(issue_key(name, "admin", sha256(key.encode()).hexdigest()))
    return key


if __name__ == "__main__":
    sys.exit(main())
