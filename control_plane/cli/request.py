"""The parts of requests that come in a shape of their own: keys, labels, a length of time, ways in from outside."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import typer

from control_plane.cli.failures import WrongUsage
from control_plane.cli.own_keys import make_own_key, public_keys

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WAY_IN: Final = re.compile(r"(?P<protocol>tcp|udp)/((?P<public>\d{1,5}):)?(?P<port>\d{1,5})")
_SPAN: Final = re.compile(r"(?P<first>\d{1,5})-(?P<last>\d{1,5})")
_LENGTH: Final = re.compile(r"(\d{1,9})([smhd]?)")


def ssh_keys(files: list[Path], note: Callable[[str], None]) -> list[str]:
    """The public keys in files, else the user's own; a user without one gets one, whose file `note` gets.

    Raises `WrongUsage`.
    """
    files = files or public_keys()
    if not files:
        files = [make_own_key()]
        note(f"made the SSH key {files[0].with_suffix('')}, because ~/.ssh had none")
    return [key for file in files for key in _keys_in(file)]


def _keys_in(file: Path) -> list[str]:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"cannot read the SSH key {file}: {error}") from error
    if "PRIVATE KEY" in text:
        raise WrongUsage(
            f"{file} is a private key, which goes nowhere", f"name the public one: --ssh-key {file}.pub"
        )
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not keys:
        raise WrongUsage(f"{file} holds no SSH key")
    return keys


def way_in(given: str) -> dict[str, object]:
    """A way in from outside: `tcp/22`, `tcp/20022:22` with the public port first, `udp/...`, or `address`."""
    if given == "address":
        return {"kind": "address"}
    match = _WAY_IN.fullmatch(given)
    if match is None:
        raise typer.BadParameter(f"{given!r} is no way in such as tcp/22, tcp/20022:22, udp/53 or address")
    named = {"public_port": int(match["public"])} if match["public"] else {}
    return {"kind": "port", "protocol": match["protocol"], "port": int(match["port"]), **named}


def public_address(given: str) -> dict[str, object]:
    """An address of a node: `203.0.113.7`, given out port by port, or only some (`203.0.113.7:20000-20999`), or
    `203.0.113.7:whole`.
    """
    address, _, use = given.partition(":")
    if use == "whole":
        return {"address": address, "use": "whole"}
    match = _SPAN.fullmatch(use) if use else None
    if use and match is None:
        raise typer.BadParameter(
            f"{given!r} is no public address such as 203.0.113.7, 203.0.113.7:20000-20999 or 203.0.113.7:whole"
        )
    span = {"first_port": int(match["first"]), "last_port": int(match["last"])} if match else {}
    return {"address": address, "use": "ports", **span}


def labels(given: list[str]) -> dict[str, str]:
    pairs = [label.partition("=") for label in given]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        raise typer.BadParameter(f"{wrong[0]!r} is not NAME=VALUE", param_hint="--label")
    return {name: value for name, _, value in pairs}


def seconds(given: str) -> int:
    """A length of time: `90`, `90s`, `30m`, `2h`, `7d`."""
    match = _LENGTH.fullmatch(given)
    if match is None:
        raise typer.BadParameter(
            f"{given!r} is no length of time such as 90s, 30m, 2h or 7d", param_hint="--lease"
        )
    return int(match[1]) * _SECONDS[match[2]]
