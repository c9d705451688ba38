"""The Merkle tree over the leaves of the ledger, and its proofs (RFC 6962 section 2.1); without I/O.

Leaf number i belongs to position i + 1. The hash of a tree of n leaves splits them at the largest power of two below n,
so that the left part is a complete subtree, which never changes again. A complete subtree is identified by its level
(the number of leaves is 2 to the power of the level) and its number among the subtrees of this level, counted from 0.

A proof is a list of hashes of ranges of leaves. `inclusion_ranges` and `consistency_ranges` return the ranges, and the
caller computes their hashes from whatever it has stored (`range_subtrees`). The functions that verify a proof follow
the algorithms of RFC 9162 (sections 2.1.3.2 and 2.1.4.2), which do not need the ranges.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from hashlib import sha256
from typing import Final, NamedTuple

EMPTY_ROOT: Final = sha256(b"").digest()
"""Hash of the tree without leaves."""
HASH_BYTES: Final = 32


class Range(NamedTuple):
    """The leaves from index `begin` up to, and without, index `end`."""

    begin: int
    end: int


class Subtree(NamedTuple):
    """A complete subtree: the leaves from `number << level` on, 2 to the power of `level` of them."""

    level: int
    number: int

    @property
    def leaves(self) -> Range:
        return Range(self.number << self.level, (self.number + 1) << self.level)


class CompletedNode(NamedTuple):
    """A complete subtree and its hash."""

    subtree: Subtree
    hash: bytes


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node with these two children."""
    return sha256(b"\x01" + left + right).digest()


class Frontier:
    """The right edge of a tree: its size and the hashes of its complete subtrees, the largest first. A tree of n leaves
    has as many of them as n has one bits.
    """

    def __init__(self, size: int = 0, peaks: Iterable[bytes] = ()) -> None:
        self._size, self._peaks = size, list(peaks)
        if len(self._peaks) != size.bit_count():
            raise ValueError(
                f"a tree of {size} leaves has {size.bit_count()} complete subtrees, not {len(self._peaks)}"
            )

    @property
    def size(self) -> int:
        """Number of leaves."""
        return self._size

    @property
    def root(self) -> bytes:
        """Hash of the tree."""
        return joined(self._peaks)

    def copy(self) -> "Frontier":
        """Return an independent copy, which can be extended and then discarded."""
        return Frontier(self._size, self._peaks)

    def extend(self, leaves: Iterable[bytes], from_level: int) -> list[CompletedNode]:
        """Add leaves, and return the subtrees of level `from_level` and above that they complete, the smallest first.
        `from_level` is at least 1.
        """
        peaks, size, completed = self._peaks, self._size, list[CompletedNode]()
        # One level after the other, without a call for each node: a verification spends a tenth of its time here.
        nodes, first, level, whole = list(leaves), size, 0, list[bytes]()
        self._size = size + len(nodes)
        while nodes:
            if level >= from_level:
                completed += [
                    CompletedNode(Subtree(level, number), found) for number, found in enumerate(nodes, first)
                ]
            if first & 1:
                nodes.insert(0, peaks.pop())
            if len(nodes) & 1:
                whole.append(nodes.pop())
            pairs = zip(nodes[::2], nodes[1::2], strict=True)
            nodes = [sha256(b"\x01" + left + right).digest() for left, right in pairs]
            first, level = first >> 1, level + 1
        peaks += reversed(whole)
        return completed


def joined(hashes: Sequence[bytes]) -> bytes:
    """Return the hash of a range from the hashes of its complete subtrees, in the order of the leaves."""
    if not hashes:
        return EMPTY_ROOT
    return reduce(lambda right, left: node_hash(left, right), reversed(hashes[:-1]), hashes[-1])


def range_subtrees(leaves: Range) -> list[Subtree]:
    """Return the complete subtrees of a range of a proof, in the order of the leaves; `joined` computes the
    hash of the range from their hashes."""
    begin, found = leaves.begin, list[Subtree]()
    while begin < leaves.end:
        level = (leaves.end - begin).bit_length() - 1
        found.append(Subtree(level, begin >> level))
        begin += 1 << level
    return found


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """Return the ranges of the proof that the tree of `size` leaves includes the leaf at `index`, from the leaf to the
    root. Raises `ValueError` if the tree does not have this leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf at index {index}; choose 0 to {size - 1}")
    begin, end, found = 0, size, list[Range]()
    while end - begin > 1:
        middle = begin + _split(end - begin)
        if index < middle:
            found.append(Range(middle, end))
            end = middle
        else:
            found.append(Range(begin, middle))
            begin = middle
    return found[::-1]


def consistency_ranges(first: int, second: int) -> list[Range]:
    """Return the ranges of the proof that the tree of `first` leaves is a prefix of that of `second` leaves, in the
    order of RFC 6962. Raises `ValueError` unless 0 < first <= second.
    """
    if not 0 < first <= second:
        raise ValueError(
            f"there is no proof from size {first} to size {second}: the first must be at least 1 and not larger"
        )
    begin, end, found, is_prefix = 0, second, list[Range](), True
    while first != end:
        middle = begin + _split(end - begin)
        if first <= middle:
            found.append(Range(middle, end))
            end = middle
        else:
            found.append(Range(begin, middle))
            begin, is_prefix = middle, False
    if not is_prefix:
        found.append(Range(begin, end))
    return found[::-1]


def verifies_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Return whether a proof shows that the tree with this size and root has this leaf at `index`."""
    if not 0 <= index < size:
        return False
    number, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if number & 1 or number == last:
            found = node_hash(sibling, found)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        number, last = number >> 1, last >> 1
    return last == 0 and found == root


def verifies_consistency(
    first: int, first_root: bytes, second: int, second_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Return whether a proof shows that the tree of `first` leaves is a prefix of the tree of `second` leaves. Every
    tree has the empty tree as a prefix, with an empty proof.
    """
    if first == 0:
        return first_root == EMPTY_ROOT and not proof
    if first == second:
        return first_root == second_root and not proof
    if not 0 < first < second or not proof:
        return False
    # Begin at the last complete subtree of the first tree. If this is the whole tree, the proof does not contain it.
    path = [first_root, *proof] if first.bit_count() == 1 else list(proof)
    number, last = first - 1, second - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if number & 1 or number == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        number, last = number >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root


def _split(size: int) -> int:
    """Return the largest power of two below `size`, which is at least 2."""
    return 1 << (size - 1).bit_length() - 1
