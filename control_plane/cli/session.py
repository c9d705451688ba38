"""The frame of every command: find the control plane, talk to it, and end with the right word and code."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer

from control_plane.cli.access import Access, find_access
from control_plane.cli.client import Client
from control_plane.cli.failures import ExitCode, Failure, Unreachable
from control_plane.cli.screen import Screen


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was said before the command: `sliceplane --url ... --api-key ... COMMAND`."""

    url: str | None
    api_key: str | None
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Session:
    client: Client
    screen: Screen
    access: Access


@contextmanager
def session(context: typer.Context, *, json: bool) -> Iterator[Session]:
    """Shows a failure of its body and turns it into the exit code that belongs to it."""
    screen = Screen(json=json)
    try:
        wanted = context.find_object(Wanted) or Wanted(None, None)
        access = find_access(wanted.url, wanted.api_key, wanted.ca)
        for warning in access.warnings:
            screen.warn(warning)
        with Client(access) as client:
            yield Session(client, screen, access)
            for aside in client.asides:
                screen.note(aside)
    except Failure as failure:
        _end(screen, failure)
    except msgspec.DecodeError as error:
        advice = "is this command line much older or newer than the control plane?"
        _end(screen, Unreachable(f"the answer was not understood: {error}", advice))
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _end(screen: Screen, failure: Failure) -> None:
    screen.failure(failure)
    raise typer.Exit(failure.exit_code) from failure
