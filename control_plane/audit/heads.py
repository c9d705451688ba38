"""Signed heads of the ledger's Merkle tree (LED-7).

A head states the size and the root hash of the tree, and digests of tables on which decisions rest and which do not
follow from the events. It is signed with Ed25519 by the sealer; the private key is in a file and never in the database.
Each head contains the hash of the previous one, so that one kept head proves all earlier ones. Numbers ascend by
one from 1. Two heads may have the same size, if only a digest changed.

The text of a head is a compact JWS of the type `head+jws`; its payload is the JSON of `Head`. This format is permanent.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from joserfc.jwk import OKPKey

from tasks.signing import BadSignature, Signer, payload_of, public_key, verify


class Part(StrEnum):
    """A part of the database that a head contains a digest of.

    `keys` covers the idempotency keys of commands with events between the size of the previous head and that of this
    head. The other parts are covered as a whole: the epochs of the ledger, the definitions of its functions and
    triggers, database roles with their privileges, and the sessions of nodes.
    """

    EPOCHS = "epochs"
    FUNCTIONS = "functions"
    KEYS = "keys"
    ROLES = "roles"
    SESSIONS = "sessions"


class PartRow(NamedTuple):
    """One row of a part: a name for people, and the SHA-256 (hex) of its content."""

    name: str
    digest: str


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A head of the tree.

    `root` is the hash (hex) of the tree over the leaves of positions 1 to `size`; `epoch` is the ledger's epoch when
    it was sealed. `previous` is the SHA-256 (hex) of the text of the previous head, null for the first head. `state`
    has the digest (hex) of each part.
    """

    number: int
    size: int
    root: str
    epoch: int
    sealed_at: datetime
    previous: str | None
    state: dict[Part, str]


class SignedHead(NamedTuple):
    """A head and its text, a compact JWS."""

    head: Head
    text: str


class BadKey(ValueError):
    """A text that is not an Ed25519 public key."""


class BadHead(ValueError):
    """A text that is not a head with a valid signature of a trusted key. The message is a sentence."""


_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER: Final = msgspec.json.Decoder(Head)


def sign_head(signer: Signer, head: Head) -> SignedHead:
    """Sign a head."""
    return SignedHead(head, signer.sign("head+jws", _ENCODER.encode(head)))


def verify_head(text: str, keys: Mapping[str, OKPKey]) -> SignedHead:
    """Return the head in a text that is signed with one of the keys. Raises `BadHead`."""
    try:
        return SignedHead(_DECODER.decode(verify(text, "head+jws", keys)), text)
    except BadSignature as bad:
        raise BadHead(bad.reason) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadHead(f"the signed text is not a head: {error}") from None


def head_of(text: str) -> SignedHead:
    """Return the head in a text without verifying its signature. Raises `BadHead` if it contains none."""
    try:
        return SignedHead(_DECODER.decode(payload_of(text)), text)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, IndexError, RecursionError) as error:
        raise BadHead(f"the text is not a head: {error}") from None


def text_digest(text: str) -> str:
    """Return the hash of a head's text that the next head contains."""
    return sha256(text.encode()).hexdigest()


def part_digest(rows: Iterable[PartRow]) -> str:
    """Return the digest of a part from its rows, in any order: the SHA-256 over the sorted lines `name TAB digest`.

    A name contains no line break and no tab, see `control_plane.audit.parts`.
    """
    lines = sorted(f"{row.name}\t{row.digest}\n".encode() for row in rows)
    return sha256(b"".join(lines)).hexdigest()


def trusted_keys(pems: Iterable[str]) -> dict[str, OKPKey]:
    """Return public keys (PEM) by key id. Raises `BadKey`."""
    try:
        keys = [public_key(pem) for pem in pems]
    except BadSignature as bad:
        raise BadKey(bad.reason) from None
    return {key.thumbprint(): key for key in keys}
