"""Trees and proofs agree with pymerkle, another implementation of RFC 6962, for random sizes (LED-7)."""

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymerkle import InmemoryTree, InvalidProof, verify_consistency, verify_inclusion

from events.ledger.tree import (
    Frontier,
    Range,
    consistency_ranges,
    inclusion_ranges,
    verifies_consistency,
    verifies_inclusion,
)

LARGEST = 300
ENTRIES = [f"entry {number}".encode() for number in range(LARGEST)]
LEAVES = [sha256(b"\x00" + entry).digest() for entry in ENTRIES]
"""Leaf hashes (RFC 6962) of sample entries. The leaves of the ledger are hashes of rows instead; for the tree, this
makes no difference.
"""


def root(leaves: Range) -> bytes:
    frontier = Frontier()
    frontier.extend(LEAVES[leaves.begin : leaves.end], from_level=64)
    return frontier.root


@pytest.fixture(scope="module")
def other() -> InmemoryTree:
    tree = InmemoryTree(algorithm="sha256")
    for entry in ENTRIES:
        tree.append_entry(entry)
    return tree


def test_merkle_tree_roots_of_all_sizes_equal_those_of_pymerkle(other: InmemoryTree) -> None:
    assert [root(Range(0, size)) for size in range(1, LARGEST + 1)] == [
        other.get_root(size) for size in range(1, LARGEST + 1)
    ]


def test_inclusion_proofs_equal_those_of_pymerkle_and_each_implementation_verifies_proofs_of_the_other(
    other: InmemoryTree,
) -> None:
    @given(st.integers(1, LARGEST).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size))))
    @settings(max_examples=300)
    def agree(place: tuple[int, int]) -> None:
        index, size = place
        hashes = [root(each) for each in inclusion_ranges(index, size)]
        theirs = other.prove_inclusion(index + 1, size)
        leaf, *path = theirs.serialize()["path"]
        assert (leaf, path) == (LEAVES[index].hex(), [each.hex() for each in hashes])
        verify_inclusion(LEAVES[index], root(Range(0, size)), theirs)
        assert verifies_inclusion(LEAVES[index], index, size, hashes, other.get_root(size))

    agree()


def test_consistency_proofs_of_this_implementation_and_of_pymerkle_verify_against_roots_of_the_other(
    other: InmemoryTree,
) -> None:
    @given(st.integers(1, LARGEST).flatmap(lambda size: st.tuples(st.integers(1, size), st.just(size))))
    @settings(max_examples=300)
    def agree(sizes: tuple[int, int]) -> None:
        first, second = sizes
        hashes = [root(each) for each in consistency_ranges(first, second)]
        states = other.get_root(first), other.get_root(second)
        assert verifies_consistency(first, states[0], second, states[1], hashes)
        verify_consistency(
            root(Range(0, first)), root(Range(0, second)), other.prove_consistency(first, second)
        )

    agree()


def test_merkle_proof_for_another_root_is_refused_by_this_implementation_and_by_pymerkle(
    other: InmemoryTree,
) -> None:
    wrong, right = sha256(b"another history").digest(), root(Range(0, 40))
    with pytest.raises(InvalidProof):
        verify_consistency(wrong, right, other.prove_consistency(17, 40))
    hashes = [root(each) for each in consistency_ranges(17, 40)]
    assert not verifies_consistency(17, wrong, 40, right, hashes)
