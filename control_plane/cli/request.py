"""Parsers of command-line values that become parts of requests: SSH keys, labels, durations, ingress rules,
addresses.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

import typer
from msgspec import UNSET, UnsetType

from control_plane.cli.failures import WrongUsage
from control_plane.cli.own_keys import make_own_key, public_keys, unstored_public_key
from control_plane.client.bodies import NodeAddress, OpenAddress, OpenIngress, OpenPort

_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_INGRESS: Final = re.compile(r"(?P<protocol>tcp|udp)/((?P<public>\d{1,5}):)?(?P<port>\d{1,5})")
_PORT_RANGE: Final = re.compile(r"(?P<first>\d{1,5})-(?P<last>\d{1,5})")
_DURATION: Final = re.compile(r"(\d{1,9})([smhd]?)")


def ssh_keys(files: list[Path], note: Callable[[str], None], *, create: bool) -> list[str]:
    """Return the public keys in the files, or else the user's own keys.

    If the user has no key, one is created if `create` is true, and its file is reported by `note`. Raises `WrongUsage`.
    """
    files = files or public_keys()
    if not files:
        if not create:
            raise WrongUsage(
                "the folder ~/.ssh contains no public SSH key", "specify a public key: --ssh-key FILE"
            )
        files = [make_own_key()]
        note(f"created the SSH key {files[0].with_suffix('')}, because ~/.ssh had none")
    return [key for file in files for key in keys_in(file)]


def keys_of_preview(files: list[Path]) -> list[str]:
    """Return the public keys in the files, or else the user's own keys. If the user has no key, return one that is not
    stored: the API requires a key, and a preview grants it nothing. Raises `WrongUsage`.
    """
    return [key for file in files or public_keys() for key in keys_in(file)] or [unstored_public_key()]


def keys_in(file: Path, option: str = "--ssh-key") -> list[str]:
    """Return the public keys in a file that `option` names; at least one. Raises `WrongUsage`."""
    text = text_in(file, option, _advice_on_missing_key(file) if option == "--ssh-key" else ())
    if "PRIVATE KEY" in text:
        raise WrongUsage(
            f"{file} is a private key, which must not be sent",
            f"specify the public key: {option} {file}.pub",
        )
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not keys:
        raise WrongUsage(
            f"the file {file} contains no SSH key", f"specify a file with public keys: {option} FILE"
        )
    return keys


def text_in(file: Path, option: str, advice_if_missing: tuple[str, ...] = ()) -> str:
    """Return the text in a file that `option` names. Raises `WrongUsage` if it cannot be read."""
    try:
        return file.read_text()
    except FileNotFoundError:
        raise WrongUsage(f"{option}: the file {file} does not exist", *advice_if_missing) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise WrongUsage(f"{option}: cannot read {file}: {reason}") from error


def _advice_on_missing_key(file: Path) -> tuple[str, ...]:
    create = f"create a key: ssh-keygen -t ed25519 -f {shlex.quote(str(file.with_suffix('')))}"
    own = "omit --ssh-key: the keys in ~/.ssh are used, and one is created if there is none"
    # ssh-keygen adds .pub to the name of the private key, so it cannot create a public key file with another ending.
    return (create, own) if file.suffix == ".pub" else (own,)


def ingress_request(
    given: str, slot: int | UnsetType = UNSET, sources: list[str] | UnsetType = UNSET
) -> OpenIngress:
    """Parse an ingress rule: `tcp/22`, `tcp/20022:22` with the public port first, `udp/...`, or `address`."""
    if given == "address":
        return OpenAddress(slot=slot, sources=sources)
    match = _INGRESS.fullmatch(given)
    if match is None:
        raise typer.BadParameter(
            f"{given!r} is not an ingress rule; use a form such as tcp/22, tcp/20022:22, udp/53 or address"
        )
    public = int(match["public"]) if match["public"] else UNSET
    return OpenPort(
        port=int(match["port"]),
        protocol=match["protocol"],
        public_port=public,
        slot=slot,
        sources=sources,
    )


def public_address(given: str) -> NodeAddress:
    """Parse a public address of a node.

    `203.0.113.7` is assigned port by port from the default range, `203.0.113.7:20000-20999` from that range, and
    `203.0.113.7:whole` as a whole.
    """
    address, _, use = given.partition(":")
    if use == "whole":
        return NodeAddress(address=address, use="whole")
    match = _PORT_RANGE.fullmatch(use) if use else None
    if use and match is None:
        raise typer.BadParameter(
            f"{given!r} is not a public address; use a form such as 203.0.113.7, 203.0.113.7:20000-20999 or"
            " 203.0.113.7:whole"
        )
    first, last = (int(match["first"]), int(match["last"])) if match else (UNSET, UNSET)
    return NodeAddress(address=address, use="ports", first_port=first, last_port=last)


def labels(given: list[str], option: str = "--label") -> dict[str, str]:
    pairs = [label.partition("=") for label in given]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        raise typer.BadParameter(f"label {wrong[0]!r} is not of the form NAME=VALUE", param_hint=option)
    return {name: value for name, _, value in pairs}


def seconds(given: str, option: str) -> int:
    """Parse a duration such as `90`, `90s`, `30m`, `2h` or `7d`; return seconds. `option` is named in the error."""
    match = _DURATION.fullmatch(given)
    if match is None:
        raise typer.BadParameter(
            f"{given!r} is not a duration; use a form such as 90s, 30m, 2h or 7d", param_hint=option
        )
    return int(match[1]) * _SECONDS[match[2]]
