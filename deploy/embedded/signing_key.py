"""Keys of the control plane in the state folder, created at the first start: the keys that sign orders and heads of the
ledger, and the key that encrypts the keys of projects, with which personal data is encrypted.
"""

import os
from base64 import b64encode
from pathlib import Path

from deploy.embedded.layout import write_private_text
from tasks.signing import Signer, new_private_key


def ensure_signing_key(path: Path) -> Path:
    """Create the file `path` with an Ed25519 private key (PKCS #8, PEM, mode 0600) if the file does not exist. Return
    `path`.
    """
    if not path.exists():
        write_private_text(path, new_private_key().decode())
    return path


def ensure_sealing_key(path: Path) -> Path:
    """Create the file `path` with the Ed25519 private key that signs heads of the ledger if the file does not exist,
    and write the public key to `public_file(path)`. Return `path`.
    """
    ensure_signing_key(path)
    public_file(path).write_text(Signer.of_pem(path.read_bytes()).public)
    return path


def ensure_personal_key(path: Path) -> Path:
    """Create the file `path` with the key that encrypts the keys of projects (32 bytes in Base64, mode 0600) if the
    file does not exist. Return `path`.
    """
    if not path.exists():
        write_private_text(path, b64encode(os.urandom(32)).decode() + "\n")
    return path


def public_file(path: Path) -> Path:
    """Return the path of the file with the public key of the sealing key in the file `path`."""
    return path.with_suffix(".pub.pem")
