"""The user's own SSH keys in ~/.ssh, the creation of a key if there is none, and keys for SSH certificates.

An existing file is never replaced: a private key without its public key file is refused, with the command that derives
the public key.
"""

import os
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Final
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from control_plane.cli.failures import WrongUsage

_NAMES: Final = ("id_ed25519", "id_ed25519_sk", "id_ecdsa", "id_ecdsa_sk", "id_rsa")
"""File names of the keys that ssh(1) tries by default."""


def private_keys() -> list[Path]:
    """Return the user's private keys that ssh(1) tries by default."""
    return [found for name in _NAMES if (found := _folder() / name).is_file()]


def public_keys() -> list[Path]:
    """Return the user's public keys."""
    return [found for name in _NAMES if (found := _folder() / f"{name}.pub").is_file()]


def make_own_key() -> Path:
    """Create ~/.ssh/id_ed25519 for a user without public keys; return the public key file. Raises `WrongUsage`."""
    if existing := private_keys():
        raise WrongUsage(
            f"an SSH key is required to log in, but {existing[0]} has no public key file",
            f"derive the public key: ssh-keygen -y -f {existing[0]} > {existing[0]}.pub",
            "alternatively, specify another public key: --ssh-key FILE",
        )
    path = _folder() / "id_ed25519"
    try:
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        return make_key_pair(path, "sliceplane")
    except OSError as error:
        raise WrongUsage(
            f"an SSH key is required to log in, but {path} cannot be created: {error.strerror}",
            "specify a public key: --ssh-key FILE",
        ) from error


def unstored_public_key() -> str:
    """Return the public key of a new key pair, of which nothing is stored."""
    public = Ed25519PrivateKey.generate().public_key()
    return public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def make_key_pair(path: Path, comment: str) -> Path:
    """Create an OpenSSH Ed25519 key pair without a passphrase at `path` (0600) and `path`.pub.

    Return the path of the public key. Raises `OSError`, also if `path` exists.
    """
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)
    public = path.with_name(f"{path.name}.pub")
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(line + f" {comment}\n".encode())
    return public


def make_temporary_key(folder: Path, lifetime: float) -> Path:
    """Create a key pair in a folder, from which files that are older than `lifetime` seconds are deleted. Return the
    path of the private key. Raises `OSError`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.iterdir():
        # Another process may delete it first.
        with suppress(FileNotFoundError):
            if old.stat().st_mtime < time() - lifetime:
                old.unlink()
    key = folder / uuid4().hex
    make_key_pair(key, "sliceplane")
    return key


def certificate_file(key: Path) -> Path:
    """Return the path of the certificate of a private or public key, where ssh(1) finds it."""
    name = key.name.removesuffix(".pub")
    return key.with_name(f"{name}-cert.pub")


def _folder() -> Path:
    return Path.home() / ".ssh"
