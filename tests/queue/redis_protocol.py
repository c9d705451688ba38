"""Encoder of Redis commands for tests that must not use a client library."""


def words(*arguments: object) -> bytes:
    """Return the encoded bytes of one Redis command."""
    parts = [str(word).encode() for word in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
