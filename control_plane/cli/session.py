"""Context of every command: find the control plane, connect to it, and turn failures into a message and an exit
code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer

from control_plane.cli.access import Access, find_access
from control_plane.cli.answers import Node, decode
from control_plane.cli.client import Client
from control_plane.cli.failures import ExitCode, Failure, NoAccess, Unreachable
from control_plane.cli.paths import node_path
from control_plane.cli.screen import Screen


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The options before the command: `sliceplane --url ... --api-key ... COMMAND`."""

    url: str | None
    api_key: str | None
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """The API client, the screen and the access of one command."""

    client: Client
    screen: Screen
    access: Access

    def readable_node(self, name: str) -> Node | None:
        """Return a node, or None if the caller is not permitted to read nodes."""
        try:
            return decode(self.client.get(node_path(name)), Node)
        except NoAccess:
            return None


@contextmanager
def session(context: typer.Context, *, json: bool) -> Iterator[Session]:
    """Provide the API client and the screen to a `with` block. On a failure, print it and exit with its exit code."""
    screen = Screen(json=json)
    try:
        options = context.find_object(GlobalOptions) or GlobalOptions(None, None)
        access = find_access(options.url, options.api_key, options.ca)
        for warning in access.warnings:
            screen.warn(warning)
        with Client(access) as client:
            yield Session(client, screen, access)
            for aside in client.asides:
                screen.note(aside)
    except Failure as failure:
        _end(screen, failure)
    except msgspec.DecodeError as error:
        advice = "check that the versions of this client and of the control plane are compatible"
        _end(screen, Unreachable(f"the response of the control plane is not valid: {error}", advice))
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _end(screen: Screen, failure: Failure) -> None:
    screen.failure(failure)
    raise typer.Exit(failure.exit_code) from failure
