"""Check single proofs against signed heads, without the export: for a client that asks the API for them."""

from collections.abc import Mapping, Sequence

from joserfc.jwk import OKPKey

from control_plane.audit.heads import SignedHead, verify_head
from events.ledger.tree import verifies_consistency, verifies_inclusion


class NotProved(Exception):
    """A proof does not show what it should; the message states what is missing."""


def check_inclusion(
    head_text: str, keys: Mapping[str, OKPKey], position: int, leaf: str, proof: Sequence[str]
) -> SignedHead:
    """Return the head if it is valid and its tree includes the leaf (hex) at a position. Raises `BadHead` and
    `NotProved`.
    """
    signed = verify_head(head_text, keys)
    head = signed.head
    hashes = _bytes([leaf, *proof])
    if not verifies_inclusion(hashes[0], position - 1, head.size, hashes[1:], bytes.fromhex(head.root)):
        raise NotProved(f"the proof does not show that head {head.number} includes position {position}")
    return signed


def check_succession(
    kept_text: str, newer_text: str, keys: Mapping[str, OKPKey], proof: Sequence[str]
) -> SignedHead:
    """Return the newer head if both are valid and the tree of the kept head is a prefix of that of the newer one.

    Raises `BadHead` and `NotProved`.
    """
    kept, newer = verify_head(kept_text, keys), verify_head(newer_text, keys)
    old, new = kept.head, newer.head
    if new.number < old.number or new.epoch < old.epoch:
        raise NotProved(
            f"head {new.number} of epoch {new.epoch} is older than the kept head {old.number} of epoch {old.epoch}"
        )
    if new.number == old.number and newer.text != kept.text:
        raise NotProved(f"head {new.number} differs from the kept head of this number")
    roots = bytes.fromhex(old.root), bytes.fromhex(new.root)
    if not verifies_consistency(old.size, roots[0], new.size, roots[1], _bytes(proof)):
        raise NotProved(
            f"the history up to position {old.size}, which the kept head {old.number} covers, is not that of head"
            f" {new.number}: the ledger was changed, cut or restored"
        )
    return newer


def _bytes(hashes: Sequence[str]) -> list[bytes]:
    try:
        return [bytes.fromhex(each) for each in hashes]
    except ValueError:
        raise NotProved("the proof contains a hash that is not in hexadecimal digits") from None
