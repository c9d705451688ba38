"""The key pair that `up` puts into its request."""

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def ensure_key_pair(path: Path) -> str:
    """An OpenSSH Ed25519 key at `path` (0600), its public half beside it; returns the public line."""
    public = path.with_suffix(".pub")
    if not public.exists():
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            file.write(private)
        line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        public.write_bytes(line + b" sliceplane-up\n")
    return public.read_text().strip()
