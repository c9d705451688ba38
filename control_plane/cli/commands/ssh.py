"""`sliceplane ssh`."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from control_plane.cli.access import Access
from control_plane.cli.failures import Refused, WrongUsage
from control_plane.cli.options import AllocationId
from control_plane.cli.own_keys import private_keys
from control_plane.cli.screen import Format
from control_plane.cli.session import Session, refuse_as_curl, session
from control_plane.cli.ssh import Login, entered, login_of, ssh_arguments
from control_plane.client import calls


def ssh(
    context: typer.Context,
    *,
    allocation: AllocationId,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", help="Command to run instead of a shell; put -- before it.", show_default=False
        ),
    ] = None,
    slot: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Index of the slot, counted from 0, if the allocation has several.",
            show_default=False,
        ),
    ] = None,
    via: Annotated[
        Literal["public", "gateway", "node"] | None,
        typer.Option(
            help="Connect through an ingress rule (public), the SSH gateway (gateway), or to the private address (node).",
            show_default="public if an ingress rule leads to the guest's SSH port, else gateway if there is one, else node",
        ),
    ] = None,
    identity: Annotated[
        list[Path] | None,
        typer.Option("--identity", "-i", help="Private key file; repeatable.", show_default=False),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="Option for ssh; repeatable.", show_default=False
        ),
    ] = None,
) -> None:
    """Log in to a slice as root, or run a command there. The exit code is that of ssh.

    The guest's host key is neither verified nor stored, unless --option sets another StrictHostKeyChecking.
    """
    with session(context, Format.TABLE) as current:
        refuse_as_curl(context, "ssh")
        found = current.client.run(calls.allocation(allocation))
        login = login_of(found, slot, via, current.access.namespaces)
        _refuse_simulated(current, login)
        line = (
            *entered(login, current.access.namespaces),
            *ssh_arguments(
                login,
                identities=identity or _identities(current.access),
                options=option or (),
                command=command or (),
            ),
        )
        _refuse_missing(line[0], "ssh")
    _become(line)


def _refuse_simulated(current: Session, login: Login) -> None:
    node = current.readable_node(login.node_id)
    if node is not None and node.simulated:
        raise Refused(f"node {login.node_id} is simulated, so its slices have no guest to log in to")


def _identities(access: Access) -> list[Path]:
    """Return the private keys to pass to ssh(1): the key of `./dev up` and the user's own keys.

    Without a readable key of `./dev up`, return no keys, because ssh(1) then tries the user's own keys by itself.
    """
    if access.identity is None or not os.access(access.identity, os.R_OK):
        return []
    return [access.identity, *private_keys()]


def _refuse_missing(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise WrongUsage(
                f"the program {program} is not installed on this machine",
                "install the missing program; on Debian: apt-get install openssh-client util-linux",
            )


def _become(line: tuple[str, ...]) -> None:
    """Replace this process by ssh, so that the terminal, signals and the exit code are those of ssh."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores SIGPIPE, and the new program would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(line[0], line)
