"""The key that the control plane signs orders with, made at the first start and kept in the state folder."""

from pathlib import Path

from deploy.embedded.layout import write_private_text
from tasks.signing import new_private_key


def ensure_signing_key(path: Path) -> Path:
    """An Ed25519 key at `path` (PKCS #8, PEM, 0600); one that is there stays."""
    if not path.exists():
        write_private_text(path, new_private_key().decode())
    return path
