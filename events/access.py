"""Facts about who may call the API. Stream: `key-<key_id>`."""

from events.facts import Fact


class ApiKeyIssued(Fact, frozen=True):
    """Somebody was given an API key; the key itself was shown once, and only its SHA-256 (hex) is kept."""

    key_id: str
    """Name of the key in events and logs, no secret."""
    name: str
    """Whose key it is."""
    role: str
    """What it may do, such as `admin`."""
    key_sha256: str
    """Of the key."""


AccessFact = ApiKeyIssued
