"""`sliceplane-server COMMAND`: the control plane's programs, and the commands that prepare their database.

Each program may be killed at any moment: on the next start it continues from the state in Postgres. Each is one
process, except an API with several workers.
"""

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Literal, assert_never

import uvloop

from control_plane.certificates import UnusableCertificate
from control_plane.commands.access import issue_first_key
from control_plane.database import DatabaseUnavailable
from control_plane.identity.api_keys import digest, new_secret
from control_plane.identity.sealing import NoSigningKey
from control_plane.programs import PURPOSES, SERVER, Program
from control_plane.schema import MigrationFailed, migrate
from control_plane.settings import (
    SettingsRefused,
    read_migration_settings,
    read_sealer_settings,
    read_settings,
)
from control_plane.version import release
from control_plane.wiring import (
    CannotListen,
    NoHostKey,
    Plane,
    configure_logs,
    plane,
    reduce_garbage_collection,
)
from events.ledger.fitness import UnfitServer
from events.ledger.personal import NoPersonalKey
from tasks.core_dumps import disable_core_dumps
from tasks.failpoints import UnknownFailpoint

USAGE: Final = 2
_COMMANDS: Final[dict[str, str]] = {
    **PURPOSES,
    "migrate": "create or update the schema and the roles of the database, then exit",
    "issue-key NAME": "create an administrator's API key, print it, then exit",
}
_TABLE: Final = "\n".join(f"  {command:<15} {purpose}" for command, purpose in _COMMANDS.items())
HELP: Final = f"""\
Usage: {SERVER} COMMAND

Commands:
{_TABLE}

Options:
  -h, --help      print this text and exit
  --version       print the version and exit

Settings come from the environment. migrate needs SLICEPLANE_MIGRATE_URL, the database as a superuser. sealer needs
SLICEPLANE_DATABASE_URL, the database as the role sliceplane_sealer, and SLICEPLANE_SEALING_KEY_FILE. All other commands
need SLICEPLANE_DATABASE_URL, the database as the role sliceplane_app, SLICEPLANE_REDIS_URL and
SLICEPLANE_PERSONAL_KEY_FILE; api, dispatcher and ssh-gateway also need SLICEPLANE_SIGNING_KEY_FILE, and ssh-gateway needs
SLICEPLANE_SSH_GATEWAY_HOST_KEY_FILE. docs/server.md describes how to set up a control plane, and
control_plane/settings.py lists all settings.

Exit codes: 0 done or stopped by SIGTERM, 1 the program cannot run, 2 wrong usage.
"""
_SETTINGS: Final = f"Correct the environment variables; {SERVER} --help lists the required ones."
_DATABASE: Final = "Start PostgreSQL, or correct SLICEPLANE_DATABASE_URL."
_LISTEN: Final = (
    "Stop the program that uses this address, or correct SLICEPLANE_LISTEN or SLICEPLANE_SSH_GATEWAY_LISTEN."
)
_MIGRATE: Final = "Correct the cause or SLICEPLANE_MIGRATE_URL, which needs the role of a superuser."


def main() -> int:
    """Run the `sliceplane-server` command that the arguments name and return its exit code.

    The code is 1 if the program cannot start or the database server turns out to be unfit later (an error with advice
    is printed to standard error), and 2 for wrong usage.
    """
    disable_core_dumps()
    try:
        return _command(sys.argv[1:])
    except* SettingsRefused as refused:
        _fail(f"The settings cannot be used: {refused.exceptions[0]}", _SETTINGS)
    except* DatabaseUnavailable as unavailable:
        _fail(f"Cannot use the database: {unavailable.exceptions[0]}", _DATABASE)
    except* MigrationFailed as failed:
        _fail(f"Cannot migrate the database: {failed.exceptions[0]}", _MIGRATE)
    except* UnfitServer as unfit:
        _fail(f"This PostgreSQL server cannot be used for the ledger: {'; '.join(_sentences(unfit))}")
    except* (NoSigningKey, NoHostKey) as none:
        _fail(f"Cannot sign: {none.exceptions[0]}")
    except* NoPersonalKey as none:
        _fail(f"Cannot read personal data: {none.exceptions[0]}")
    except* UnusableCertificate as unusable:
        _fail(f"Cannot use a TLS file: {unusable.exceptions[0]}")
    except* CannotListen as cannot:
        _fail(str(cannot.exceptions[0]), _LISTEN)
    except* UnknownFailpoint as unknown:
        print(unknown.exceptions[0], file=sys.stderr)
    return 1


def _fail(sentence: str, *advice: str) -> None:
    print(" ".join((f"{sentence}.", *advice)), file=sys.stderr)


def _sentences(unfit: BaseExceptionGroup[UnfitServer]) -> list[str]:
    """Return the reasons why the database server is unfit, each once, although several asyncio tasks may report it."""
    found: dict[str, None] = {}
    for error in unfit.exceptions:
        reasons = _sentences(error) if isinstance(error, BaseExceptionGroup) else error.reasons
        found.update(dict.fromkeys(reasons))
    return [*found]


def _command(words: list[str]) -> int:
    match words:
        case [program] if program in [*Program]:
            return _run_program(Program(program))
        case ["migrate"]:
            migrate(read_migration_settings().migrate_url.get_secret_value())
            print("The database is migrated to the schema of this release.")
            return 0
        case ["issue-key", name] if not name.startswith("-"):
            print(uvloop.run(_issue_key(name)))
            return 0
        case ["-h" | "--help"] | [_, "-h" | "--help"]:
            print(HELP, end="")
            return 0
        case ["--version"]:
            print(f"{SERVER} {release()}")
            return 0
        case []:
            problem = "no command given"
        case ["issue-key"]:
            problem = "issue-key needs one name, that of the new administrator's key"
        case [command, *rest] if rest and command in {name.split()[0] for name in _COMMANDS}:
            problem = f"{command} does not accept these arguments: {shlex.join(rest)}"
        case _:
            commands = ", ".join(name.split()[0] for name in _COMMANDS)
            problem = f"unknown command {shlex.join(words)}; choose one of {commands}"
    print(f"{SERVER}: {problem} (see {SERVER} --help)", file=sys.stderr)
    return USAGE


def _run_program(program: Program) -> int:
    """Run a program until a signal stops it."""
    match program:
        case Program.API:
            return _serve()
        case Program.SEALER:
            return uvloop.run(_seal())
        case Program.DISPATCHER | Program.PROJECTOR:
            return uvloop.run(_run(_entry(program)))
        case Program.SSH_GATEWAY:
            # asyncio instead of uvloop: uvloop reads so many bytes from one connection that other connections wait, and
            # it returns no address of a client that disconnects immediately.
            return asyncio.run(_run(_entry(program)))
    assert_never(program)


def _entry(
    program: Literal[Program.API, Program.DISPATCHER, Program.PROJECTOR, Program.SSH_GATEWAY],
) -> Callable[..., Awaitable[None]]:
    """Return the function that runs a program until it is cancelled.

    Only the modules of this program are imported: FastAPI alone would take a third of a dispatcher's start.
    """
    match program:
        case Program.API:
            from control_plane.api.server import serve

            return serve
        case Program.DISPATCHER:
            from control_plane.dispatcher.dispatcher_program import run_dispatcher

            return run_dispatcher
        case Program.PROJECTOR:
            from control_plane.projector.program import run_projector

            return run_projector
        case Program.SSH_GATEWAY:
            from control_plane.ssh_gateway.program import serve_ssh

            return serve_ssh
    assert_never(program)


async def _seal() -> int:
    """Run the sealer until a signal stops it."""
    from control_plane.sealer.program import run_sealer

    settings = read_sealer_settings()
    configure_logs(settings.log)
    reduce_garbage_collection()
    return await _until_signal(run_sealer(settings))


def _serve() -> int:
    """Run the API, as one process or as several workers."""
    settings = read_settings()
    if settings.api_workers == 1:
        return uvloop.run(_run(_entry(Program.API)))
    from control_plane.api.workers import supervise_workers

    configure_logs(settings.log)
    worker = supervise_workers(settings.listen.split(","), settings.api_workers)
    if isinstance(worker, int):
        return worker
    return uvloop.run(_run(partial(_entry(Program.API), sockets=worker.sockets), worker.parent_ended))


async def _run(entry: Callable[[Plane], Awaitable[None]], parent_ended: int | None = None) -> int:
    """Run a program until a signal stops it, or until the file descriptor `parent_ended` becomes readable."""
    settings = read_settings()
    configure_logs(settings.log)
    reduce_garbage_collection()
    async with plane(settings) as made:
        return await _until_signal(entry(made), parent_ended)


async def _until_signal(program: Awaitable[None], parent_ended: int | None = None) -> int:
    running, loop = asyncio.ensure_future(program), asyncio.get_running_loop()
    if parent_ended is not None:
        loop.add_reader(parent_ended, running.cancel)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return 0


async def _issue_key(name: str) -> str:
    """Create an administrator's API key, record its hash and return the key, which cannot be shown again."""
    key = new_secret()
    settings = read_settings()
    # Without configured logs, a log line would go to standard output, from which the caller reads the key.
    configure_logs(settings.log)
    async with plane(settings, pool=1) as made:
        await made.handle(issue_first_key(name, digest(key)))
    return key
