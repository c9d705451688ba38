"""The key with which the control plane signs orders, created at the first start and kept in the state folder."""

from pathlib import Path

from deploy.embedded.layout import write_private_text
from tasks.signing import new_private_key


def ensure_signing_key(path: Path) -> Path:
    """Create an Ed25519 key at `path` (PKCS #8, PEM, mode 0600) if there is none. Return `path`."""
    if not path.exists():
        write_private_text(path, new_private_key().decode())
    return path
