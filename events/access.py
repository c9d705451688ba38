"""Facts about API keys. Stream: `key-<key_id>`."""

from events.facts import Fact


class ApiKeyIssued(Fact, frozen=True):
    """An API key was issued. The key itself is shown once and never stored; only its SHA-256 (hex) is."""

    key_id: str
    """Public identifier of the key in events and logs; not a secret."""
    name: str
    """Display name of the key's owner."""
    role: str
    """Role that the key grants, such as `admin`."""
    key_sha256: str
    """SHA-256 of the key, in hexadecimal."""


AccessFact = ApiKeyIssued
