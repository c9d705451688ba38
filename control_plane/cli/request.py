"""The parts of a request for an allocation that come in a shape of their own: keys, labels, a length of time."""

import re
from pathlib import Path
from typing import Final

import typer

from control_plane.cli.failures import WrongUsage

_OWN_KEYS: Final = ("id_ed25519.pub", "id_ed25519_sk.pub", "id_ecdsa.pub", "id_ecdsa_sk.pub", "id_rsa.pub")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LENGTH: Final = re.compile(r"(\d{1,9})([smhd]?)")


def ssh_keys(files: list[Path]) -> list[str]:
    """The public keys in files, or the user's own. Raises `WrongUsage`."""
    if not files:
        files = [found for name in _OWN_KEYS if (found := Path.home() / ".ssh" / name).is_file()]
    if not files:
        raise WrongUsage(
            "an SSH key is needed to log in, and you have none in ~/.ssh",
            "make one: ssh-keygen -t ed25519",
            "or name the public key: --ssh-key FILE",
        )
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
