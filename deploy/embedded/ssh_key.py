"""The key pair that `up` puts into its request."""

from pathlib import Path

from control_plane.cli.own_keys import make_key_pair


def ensure_key_pair(path: Path) -> str:
    """An OpenSSH Ed25519 key at `path` (0600), its public half beside it; returns the public line."""
    public = path.with_name(f"{path.name}.pub")
    if not public.exists():
        path.unlink(missing_ok=True)  # left by a crash between the two files
        make_key_pair(path, "sliceplane-up")
    return public.read_text().strip()
