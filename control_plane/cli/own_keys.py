"""The user's own SSH keys in ~/.ssh, and a new one for a user who has none.

An existing file is never replaced: a private key without its public half beside it is refused, with the command that
derives it.
"""

import os
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from control_plane.cli.failures import WrongUsage

_NAMES: Final = ("id_ed25519", "id_ed25519_sk", "id_ecdsa", "id_ecdsa_sk", "id_rsa")
"""The names that ssh(1) tries by itself."""


def private_keys() -> list[Path]:
    """The user's private keys, as ssh(1) finds them."""
    return [found for name in _NAMES if (found := _folder() / name).is_file()]


def public_keys() -> list[Path]:
    """The public halves of the user's keys."""
    return [found for name in _NAMES if (found := _folder() / f"{name}.pub").is_file()]


def make_own_key() -> Path:
    """Make ~/.ssh/id_ed25519 for a user without public keys, and return its public half. Raises `WrongUsage`."""
    if lonely := private_keys():
        raise WrongUsage(
            f"an SSH key is needed to log in, and {lonely[0]} has no public half beside it",
            f"derive it: ssh-keygen -y -f {lonely[0]} > {lonely[0]}.pub",
            "or name another public key: --ssh-key FILE",
        )
    path = _folder() / "id_ed25519"
    try:
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        return make_key_pair(path, "sliceplane")
    except OSError as error:
        raise WrongUsage(
            f"an SSH key is needed to log in, and {path} cannot be made: {error.strerror}",
            "name a public key: --ssh-key FILE",
        ) from error


def make_key_pair(path: Path, comment: str) -> Path:
    """Make an OpenSSH Ed25519 key without a passphrase at `path` (0600), its public half beside it; returns that.

    Raises `OSError`, also when `path` exists.
    """
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)
    public = path.with_name(f"{path.name}.pub")
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(line + f" {comment}\n".encode())
    return public


def _folder() -> Path:
    return Path.home() / ".ssh"
