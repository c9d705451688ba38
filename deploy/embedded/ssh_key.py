"""The SSH key pair that `up` uses in its request."""

from pathlib import Path

from control_plane.cli.own_keys import make_key_pair


def ensure_key_pair(path: Path) -> str:
    """Create an OpenSSH Ed25519 key at `path` (mode 0600) and `path`.pub if missing. Return the public key line."""
    public = path.with_name(f"{path.name}.pub")
    if not public.exists():
        path.unlink(missing_ok=True)  # left by a crash between the two files
        make_key_pair(path, "sliceplane-up")
    return public.read_text().strip()
