"""What is said to Redis where a client library would be in the way."""


def words(*said: object) -> bytes:
    """One command."""
    parts = [str(word).encode() for word in said]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
