"""Sealing of stored answers that contain a secret: an enrolment token, or the secret of an API key.

A repeated request with the same idempotency key returns the stored answer of the first one, so the secret has to be
stored. It is encrypted (AES-256-GCM) with a key that is derived (HKDF, RFC 5869) from the bearer secret of the caller,
of which the control plane stores only a hash. So the database, its backups and its administrators cannot read the
answer, and only the credential that sent the first request can.
"""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_PREFIX: Final = "sealed1."
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_PURPOSE: Final = b"sliceplane stored answer 1"
_NONCE: Final = bytes(12)
"""Nonce of the encryption. It is constant, because the random salt gives every answer a key of its own, which encrypts
nothing else.
"""


class CannotOpen(Exception):
    """The answer was sealed with another secret or for another request, or it was changed."""


def seal_answer(answer: str, secret: str, request: str) -> str:
    """Return an answer encrypted with a caller's secret. It can be opened only with the same secret and `request`, a
    text that identifies the request.
    """
    salt = secrets.token_bytes(_SALT_BYTES)
    encrypted = _cipher(secret, salt).encrypt(_NONCE, answer.encode(), request.encode())
    return _PREFIX + urlsafe_b64encode(salt + encrypted).decode()


def open_answer(sealed: str, secret: str, request: str) -> str:
    """Return the answer that was sealed with the same secret for the same request. Raises `CannotOpen`."""
    try:
        raw = urlsafe_b64decode(sealed.removeprefix(_PREFIX))
        salt, encrypted = raw[:_SALT_BYTES], raw[_SALT_BYTES:]
        return _cipher(secret, salt).decrypt(_NONCE, encrypted, request.encode()).decode()
    except (InvalidTag, ValueError) as error:
        raise CannotOpen("the stored answer cannot be opened with this credential") from error


def _cipher(secret: str, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt, _PURPOSE).derive(secret.encode()))
