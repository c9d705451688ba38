"""Encryption of the personal fields of events, and of stored responses, with a key of their project (decision 0051).

In memory, a fact has its personal fields like all others. In the stored JSON they are one member:
`"personal":{"key":ID,"sealed":BASE64}`, AES-256-GCM over the canonical JSON of the fields, with a random 96-bit nonce
in front. The associated data names the place of the ciphertext: event type, stream and version, or the idempotency key.
So a ciphertext that was moved to another event cannot be read. The leaf of an event covers the ciphertext.

A key is encrypted with the master key, which is in a file and never in the database. Without its key, which an erasure
destroys, an event decodes with the values of `_ERASED`.
"""

import os
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from events.values import new_uuid

ERASED: Final = "erased"
"""Text that replaces an erased description or reason."""
PERSONAL_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "allocation.requested": ("apart_from", "labels", "ssh_authorized_keys", "user_data"),
    "project.created": ("description",),
    "project.described": ("description",),
    "project.archived": ("reason",),
}
"""The personal fields of each event type that has any."""
_ERASED: Final[Mapping[str, str]] = {
    "allocation.requested": '"labels":{},"ssh_authorized_keys":[]',
    "project.created": f'"description":"{ERASED}"',
    "project.described": f'"description":"{ERASED}"',
    "project.archived": f'"reason":"{ERASED}"',
}
# A quote within a JSON string is escaped, so this text occurs only as a member.
_SEALED: Final = re.compile(r'"personal":\{"key":"([^"]+)","sealed":"([^"]*)"\}')
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_KEYS_CACHED: Final = 4096
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
Place: TypeAlias = Sequence[str]
"""What a ciphertext belongs to: type, stream and version of an event, or the parts of an idempotency key."""


class NoPersonalKey(Exception):
    """The master key of personal data is missing or unusable. The message is a sentence for the operator."""


class UnreadablePersonalData(ValueError):
    """Personal data cannot be decrypted: its key is missing, or the ciphertext was damaged or moved."""


class ProjectKey(NamedTuple):
    """A key of a project, with which personal data is encrypted."""

    key_id: str
    cipher: AESGCM


class MasterKey:
    """The key that encrypts the keys of projects. Raises `NoPersonalKey` unless it has 32 bytes."""

    def __init__(self, secret: bytes, source: str = "the master key") -> None:
        if len(secret) != _KEY_BYTES:
            raise NoPersonalKey(
                f"the personal key file {source} cannot be used: it has {len(secret)} bytes in Base64 instead of {_KEY_BYTES};"
                f" create one with: openssl rand -base64 {_KEY_BYTES}"
            )
        self._secret, self._cipher, self.source = secret, AESGCM(secret), source
        self._unwrapped = lru_cache(_KEYS_CACHED)(self._unwrap)

    @classmethod
    def of_file(cls, path: Path) -> "MasterKey":
        """Read the key from a file with 32 bytes in Base64. Raises `NoPersonalKey`."""
        try:
            return cls(b64decode(path.read_text("ascii").strip(), validate=True), str(path))
        except OSError as error:
            raise NoPersonalKey(f"the personal key file {path} cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, NotBase64) as error:
            raise NoPersonalKey(
                f"the personal key file {path} cannot be used: it is not Base64; create one with: openssl rand -base64 {_KEY_BYTES}"
            ) from error

    def new_key(self) -> tuple[ProjectKey, bytes]:
        """Return a new key for a project, and its encrypted secret for the database."""
        key_id, secret, nonce = str(new_uuid()), AESGCM.generate_key(_KEY_BYTES * 8), os.urandom(_NONCE_BYTES)
        wrapped = nonce + self._cipher.encrypt(nonce, secret, _associated((key_id,)))
        return ProjectKey(key_id, AESGCM(secret)), wrapped

    def derived(self, purpose: str) -> bytes:
        """Return 32 secret bytes for a purpose, always the same ones (HKDF with SHA-256, RFC 5869). They reveal neither
        the master key nor the bytes for another purpose.
        """
        return HKDF(SHA256(), _KEY_BYTES, salt=None, info=purpose.encode()).derive(self._secret)

    def unwrapped(self, key_id: str, wrapped: bytes) -> AESGCM:
        """Decrypt the secret of a project key and return its cipher. The newest ciphers are cached. Raises
        `UnreadablePersonalData`.
        """
        return self._unwrapped(key_id, wrapped)

    def _unwrap(self, key_id: str, wrapped: bytes) -> AESGCM:
        nonce, ciphertext = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        try:
            return AESGCM(self._cipher.decrypt(nonce, ciphertext, _associated((key_id,))))
        except (InvalidTag, ValueError) as error:
            raise UnreadablePersonalData(
                f"the project key {key_id} was not encrypted with {self.source}"
            ) from error


def sealed_event(place: Place, data: str, key: ProjectKey) -> str:
    """Return the canonical JSON of an event with its personal fields encrypted. `place` begins with its type."""
    members = _MEMBERS.decode(data)
    personal = {name: members.pop(name) for name in PERSONAL_FIELDS[place[0]] if name in members}
    plain = _ENCODER.encode(personal)
    members["personal"] = msgspec.Raw(_member(place, plain, key).encode())
    return _ENCODER.encode(members).decode()


def sealed_answer(place: Place, answer: str, key: ProjectKey) -> str:
    """Encrypt a response before it is stored, and return it as JSON."""
    return f'{{"personal":{_member(place, answer.encode(), key)}}}'


def key_of(data: str) -> str | None:
    """Return the id of the key with which the personal data of an event or a response is encrypted; None if it has no
    encrypted data.
    """
    found = _SEALED.search(data)
    return None if found is None else found[1]


def opened_event(place: Place, data: str, cipher: AESGCM | None) -> str:
    """Return the JSON of an event with its personal fields in plain text; if `cipher` is None, with the values that
    stand for erased fields. Raises `UnreadablePersonalData`.
    """
    found = _SEALED.search(data)
    if found is None:
        return data
    plain = _ERASED[place[0]] if cipher is None else _plain(place, found[2], cipher)[1:-1]
    return f"{data[: found.start()]}{plain}{data[found.end() :]}"


def opened_answer(place: Place, answer: str, cipher: AESGCM) -> str:
    """Return an encrypted response in plain text. Raises `UnreadablePersonalData`."""
    found = _SEALED.search(answer)
    return answer if found is None else _plain(place, found[2], cipher)


def _member(place: Place, plain: bytes, key: ProjectKey) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    sealed = b64encode(nonce + key.cipher.encrypt(nonce, plain, _associated(place))).decode()
    return f'{{"key":"{key.key_id}","sealed":"{sealed}"}}'


def _plain(place: Place, sealed: str, cipher: AESGCM) -> str:
    try:
        raw = b64decode(sealed, validate=True)
        return cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _associated(place)).decode()
    except (InvalidTag, ValueError) as error:
        raise UnreadablePersonalData(
            "the personal data cannot be decrypted: the ciphertext was damaged or moved from another place"
        ) from error


def _associated(place: Place) -> bytes:
    return _ENCODER.encode(place)
