"""Validation of OpenSSH public keys (sshd(8), AUTHORIZED_KEYS FILE FORMAT; RFC 4253 section 6.6).

Only the bare form `type blob [comment]` is accepted: options such as `command=` would let a request change the
behaviour of the guest's sshd, and no caller of an allocation needs them.

A key is validated once, when an allocation with the key is requested. The keys in an order come from the ledger and are
not validated again (`tasks.fields`), because a key that an earlier release recorded must not make an order unreadable.
"""

import base64
import textwrap
from functools import lru_cache
from hashlib import sha256
from typing import Final

from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from events.values import InvalidValue, SshPublicKey

KEY_TYPES: Final = frozenset(
    {
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    }
)
"""Key types that are accepted. The library that parses keys also loads DSA keys, which sshd refuses, and certificates,
which are not keys."""
MAX_LENGTH: Final = 8192


@lru_cache(maxsize=256)  # a caller sends the same keys with each of its requests
def ssh_public_key(raw: str) -> SshPublicKey:
    """Validate and return an OpenSSH public key line. A comment may follow the key; control characters are refused.

    Raises `InvalidValue`.
    """
    line = raw.strip(" ")
    kind, _, rest = line.partition(" ")
    blob, _, comment = rest.lstrip(" ").partition(" ")
    if len(line) > MAX_LENGTH or not line.isprintable():
        raise _refusal(raw, f"use one printable line of at most {MAX_LENGTH} characters")
    if kind not in KEY_TYPES:
        raise _refusal(raw, f"the first word of the key must be one of {', '.join(sorted(KEY_TYPES))}")
    try:
        base64.b64decode(blob, validate=True)  # the library skips characters that sshd refuses
        load_ssh_public_key(f"{kind} {blob}".encode())
    except (ValueError, NotImplementedError):  # the library does not implement compressed points
        raise _refusal(
            raw, f"the second word of the key is not a key of type {kind}; paste the complete key"
        ) from None
    return SshPublicKey(f"{kind} {blob} {comment}".rstrip(" "))


def fingerprint_of(key: SshPublicKey) -> str:
    """Return the fingerprint of a public key, as ssh-keygen prints it."""
    digest = sha256(base64.b64decode(key.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _refusal(raw: str, reason: str) -> InvalidValue:
    shown = textwrap.shorten(raw, 40, placeholder="...")
    return InvalidValue("SSH public key", shown, reason)
