"""Command `sliceplane ssh`, which logs in to a slice with ssh(1)."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from control_plane.cli.access import Access, own_contexts_file
from control_plane.cli.failures import Refused, WrongUsage
from control_plane.cli.options import AllocationId
from control_plane.cli.own_keys import certificate_file, make_temporary_key, private_keys
from control_plane.cli.screen import Format
from control_plane.cli.session import Session, refuse_as_curl, session
from control_plane.cli.ssh import Login, entered, login_of, ssh_arguments
from control_plane.client import calls, errors
from control_plane.client.answers import Allocation

_CERTIFICATE_SECONDS: Final = 900
"""Validity of a certificate. A temporary key is deleted by a later login after this time."""


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
    certificate: Annotated[
        bool | None,
        typer.Option(
            "--certificate/--no-certificate",
            help="Offer an SSH certificate for a temporary key first, then your own keys.",
            show_default="with a certificate if the allocation has gateway access and there is no --identity",
        ),
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
        certified = _certified(current, found, identity or [], wanted=certificate)
        line = (
            *entered(login, current.access.namespaces),
            *ssh_arguments(
                login,
                identities=identity or _identities(current.access, certified),
                certified=certified,
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


def _certified(
    current: Session, found: Allocation, identities: list[Path], *, wanted: bool | None
) -> Path | None:
    """Return a temporary private key with an SSH certificate; None if the login needs none, or if `wanted` is None and
    the control plane refuses one.
    """
    if wanted is False or (wanted is None and (identities or not found.gateway_access)):
        return None
    folder = own_contexts_file().parent / "ssh"
    try:
        key = make_temporary_key(folder, _CERTIFICATE_SECONDS)
        public = key.with_name(f"{key.name}.pub").read_text()
        issued = current.client.run(calls.request_ssh_certificate(found.id, public.strip()))
        certificate_file(key).write_text(f"{issued.certificate}\n")
    except OSError as error:
        raise WrongUsage(
            f"the certificate cannot be written to {folder}: {error.strerror}",
            "log in with a key of the allocation: --no-certificate",
        ) from error
    except (errors.Forbidden, errors.Conflict) as refused:
        if wanted:
            raise
        current.screen.note(f"logging in without a certificate: {refused}")
        return None
    return key


def _identities(access: Access, certified: Path | None) -> list[Path]:
    """Return the private keys to pass to ssh(1): the key of `./dev up` and the user's own keys.

    Without a readable key of `./dev up` and without a certificate, return no keys, because ssh(1) then tries the user's
    own keys by itself.
    """
    lab = [access.identity] if access.identity is not None and os.access(access.identity, os.R_OK) else []
    return [*lab, *private_keys()] if lab or certified else []


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
