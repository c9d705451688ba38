"""Heads of the ledger as a node reads them, and the comparison of two heads; without I/O.

A head is a statement of the sealer about the history of the ledger (LED-7): the number of positions, and the root of a
Merkle tree (RFC 6962) over them. `control_plane.audit.heads` describes all fields of a head. A node reads only the
fields that it compares, and ignores the others, so that a later release may add fields.
"""

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec
from joserfc.jwk import OKPKey

from tasks.signing import payload_of, verify

MAX_HEAD: Final = 4096
"""Maximum length of the signed text of a head, in characters."""


class HeldHead(msgspec.Struct, frozen=True):
    """The fields of a head that a node compares. `previous` is the SHA-256 of the signed text of the head before this
    one (hexadecimal); None for the first head.
    """

    number: int
    size: int
    root: str
    epoch: int
    sealed_at: datetime
    previous: str | None

    def __str__(self) -> str:
        return f"head {self.number} of {self.size} positions in epoch {self.epoch}"


class SizesToProve(NamedTuple):
    """Numbers of leaves and roots of the Merkle trees of two heads, if only a consistency proof can show whether the
    two heads agree. They agree if the tree with `first` leaves is a prefix of the tree with `second` leaves.
    """

    first: int
    first_root: bytes
    second: int
    second_root: bytes


class UnreadableHead(ValueError):
    """A signed text that does not contain a head of the ledger."""


def signed_head(text: str, keys: Mapping[str, OKPKey]) -> HeldHead:
    """Return the head in a text that is signed with one of the keys. Raises `BadSignature` and `UnreadableHead`."""
    return _read(verify(text, "head+jws", keys))


def stored_head(text: str) -> HeldHead:
    """Return the head in a text that was verified when it was stored. Raises `UnreadableHead`."""
    try:
        return _read(payload_of(text))
    except (ValueError, IndexError) as error:
        raise UnreadableHead(f"the stored text is not a signed head: {error}") from None


def difference(held: str, other: str) -> SizesToProve | str | None:
    """Compare two heads with verified signatures, in any order of time.

    Return None if the heads agree, a sentence with the contradiction if they contradict each other, and the sizes for a
    consistency proof if only such a proof can decide. Raises `UnreadableHead`.
    """
    first, second = sorted((held, other), key=lambda text: stored_head(text).number)
    older, newer = stored_head(first), stored_head(second)
    if first == second:
        return None
    if older.number == newer.number:
        return f"two different heads have the number {older.number}"
    if older.size > newer.size or older.epoch > newer.epoch:
        return f"{newer} has a higher number than {older}, but fewer positions or a lower epoch"
    if newer.number == older.number + 1 and newer.previous != sha256(first.encode()).hexdigest():
        return f"{newer} does not name {older} as the head before it"
    if older.size == newer.size:
        return None if older.root == newer.root else f"{older} and {newer} have different roots"
    if older.size == 0:
        return None
    return SizesToProve(older.size, bytes.fromhex(older.root), newer.size, bytes.fromhex(newer.root))


def _read(payload: bytes) -> HeldHead:
    try:
        head = _DECODER.decode(payload)
        bytes.fromhex(head.root)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableHead(f"the signed text is not a head: {error}") from None
    return head


_DECODER = msgspec.json.Decoder(HeldHead)
