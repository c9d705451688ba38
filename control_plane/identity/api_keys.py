"""Secrets of API keys. The control plane stores only their SHA-256."""

import secrets
from hashlib import sha256


def new_secret() -> str:
    """Return the secret of a new API key."""
    return f"sp_{secrets.token_urlsafe(32)}"


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret, in hexadecimal."""
    return sha256(secret.encode()).hexdigest()
