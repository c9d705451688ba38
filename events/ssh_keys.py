"""Validation of OpenSSH public keys (sshd(8), AUTHORIZED_KEYS FILE FORMAT; RFC 4253 section 6.6).

Only the bare form `type blob [comment]` is accepted: options such as `command=` would let a request change the
behaviour of the guest's sshd, and no caller of an allocation needs them.
"""

import base64
import binascii
import textwrap
from functools import lru_cache
from typing import Final

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
MAX_LENGTH: Final = 8192


@lru_cache(maxsize=256)  # a tenant has few keys, and each of its orders is read and written with them
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
    if _type_inside(raw, blob) != kind:
        raise _refusal(raw, f"the key data is not of type {kind}; paste the complete key")
    return SshPublicKey(f"{kind} {blob} {comment}".rstrip(" "))


def _type_inside(raw: str, blob: str) -> str:
    """Return the key type that the first field of an SSH public key blob names (RFC 4251 `string`)."""
    try:
        data = base64.b64decode(blob, validate=True)
    except binascii.Error:
        raise _refusal(raw, "the second word of the key is not base64; paste the complete key") from None
    length = int.from_bytes(data[:4], "big")
    if len(data) <= 4 + length:
        raise _refusal(raw, "the key is truncated; paste the complete key")
    return data[4 : 4 + length].decode("ascii", "replace")


def _refusal(raw: str, reason: str) -> InvalidValue:
    shown = textwrap.shorten(raw, 40, placeholder="...")
    return InvalidValue("SSH public key", shown, reason)
