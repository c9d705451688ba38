"""The control plane's programs: `python -m control_plane api | dispatcher | projector | issue-key NAME`.

Each is one process, may be killed at any moment, and goes on from what is in Postgres when it starts again.
"""

import asyncio
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from hashlib import sha256

import uvloop

from control_plane.api.server import serve
from control_plane.certificates import UnusableCertificate
from control_plane.commands.access import issue_key
from control_plane.followers import run_dispatcher
from control_plane.projector.program import run_projector
from control_plane.sealing import NoSigningKey
from control_plane.settings import SettingsRefused, read_settings
from control_plane.wiring import Plane, configure_logs, plane, spare_collections
from events.fitness import UnfitServer
from tasks.failpoints import UnknownFailpoint

PROGRAMS: dict[str, Callable[[Plane], Awaitable[None]]] = {
    "api": serve,
    "dispatcher": run_dispatcher,
    "projector": run_projector,
}


def main() -> int:
    """The exit code: 1 for settings that cannot be used, for no key, and for a server that must not carry the ledger,
    found at the start or later on.
    """
    try:
        return _command(sys.argv[1:])
    except* SettingsRefused as refused:
        print(f"The settings cannot be used: {refused.exceptions[0]}.", file=sys.stderr)
    except* UnfitServer as unfit:
        print(
            f"This server cannot carry the ledger: {'; '.join(_sentences(unfit))}.",
            file=sys.stderr,
        )
    except* NoSigningKey as none:
        print(f"Orders cannot be signed: {none.exceptions[0]}.", file=sys.stderr)
    except* UnusableCertificate as unusable:
        print(f"A file for TLS cannot be used: {unusable.exceptions[0]}.", file=sys.stderr)
    except* UnknownFailpoint as unknown:
        print(unknown.exceptions[0], file=sys.stderr)
    return 1


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
        case _:
            print(__doc__, file=sys.stderr)
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
