"""The keys with which the control plane signs orders and heads of the ledger, and encrypts personal data. They are
created at the first start and kept in the state folder.
"""

import os
from base64 import b64encode
from pathlib import Path

from deploy.embedded.layout import write_private_text
from tasks.signing import Signer, new_private_key


def ensure_signing_key(path: Path) -> Path:
    """Create an Ed25519 key at `path` (PKCS #8, PEM, mode 0600) if there is none. Return `path`."""
    if not path.exists():
        write_private_text(path, new_private_key().decode())
    return path


def ensure_sealing_key(path: Path) -> Path:
    """Create the Ed25519 key that signs heads at `path`, if there is none, and write its public key beside it
    (`.pub.pem`). Return `path`.
    """
    ensure_signing_key(path)
    public_file(path).write_text(Signer.of_pem(path.read_bytes()).public)
    return path


def ensure_personal_key(path: Path) -> Path:
    """Create the key that encrypts the keys of projects at `path` (32 bytes in Base64, mode 0600) if there is none.
    Return `path`.
    """
    if not path.exists():
        write_private_text(path, b64encode(os.urandom(32)).decode() + "\n")
    return path


def public_file(path: Path) -> Path:
    """Return the file with the public key of the sealing key at `path`."""
    return path.with_suffix(".pub.pem")
