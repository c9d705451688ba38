"""Tests that the Merkle tree and its proofs agree with published vectors and with the definitions of RFC 6962.

The vectors are those of the Certificate Transparency reference implementation (github.com/transparency-dev/merkle,
testonly/constants.go and testonly/reference_test.go). The functions `tree_hash`, `path` and `subproof` are the
recursive definitions of RFC 6962 sections 2.1, 2.1.1 and 2.1.2, written without the code that they are compared with.
"""

from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.ledger.tree import (
    EMPTY_ROOT,
    CompletedNode,
    Frontier,
    Range,
    Subtree,
    consistency_ranges,
    inclusion_ranges,
    joined,
    range_subtrees,
    verifies_consistency,
    verifies_inclusion,
)

INPUTS = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
NODES = {
    "0-2": "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "0-4": "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "0": "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "1": "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
    "2-4": "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
    "4": "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    "4-6": "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
    "4-8": "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    "6-8": "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
}
PATHS = ((0, 1, ()), (0, 2, ("1",)), (1, 2, ("0",)), (2, 3, ("0-2",)), (1, 5, ("0", "2-4", "4")), (0, 8, ("1", "2-4", "4-8")), (5, 8, ("4", "6-8", "0-4")))  # fmt: skip
CONSISTENT = ((1, 1, ()), (1, 8, ("1", "2-4", "4-8")), (2, 5, ("2-4", "4")), (6, 8, ("4-6", "6-8", "0-4")))
LEAVES = [sha256(b"\x00" + bytes.fromhex(each)).digest() for each in INPUTS]


def split(count: int) -> int:
    power = 1
    while power * 2 < count:
        power *= 2
    return power


def tree_hash(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return sha256(b"\x01" + tree_hash(leaves[:k]) + tree_hash(leaves[k:])).digest()


def path(m: int, leaves: Sequence[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if m < k:
        return [*path(m, leaves[:k]), tree_hash(leaves[k:])]
    return [*path(m - k, leaves[k:]), tree_hash(leaves[:k])]


def subproof(m: int, leaves: Sequence[bytes], *, complete: bool) -> list[bytes]:
    if m == len(leaves):
        return [] if complete else [tree_hash(leaves)]
    k = split(len(leaves))
    if m <= k:
        return [*subproof(m, leaves[:k], complete=complete), tree_hash(leaves[k:])]
    return [*subproof(m - k, leaves[k:], complete=False), tree_hash(leaves[:k])]


def root_of(leaves: Sequence[bytes]) -> bytes:
    frontier = Frontier()
    frontier.extend(leaves, from_level=1)
    return frontier.root


def hashes(leaves: Sequence[bytes], ranges: Sequence[Range]) -> list[bytes]:
    """Return the hashes of ranges, from the complete subtrees that the frontier reports and from the leaves."""
    completed = {Subtree(0, index): leaf for index, leaf in enumerate(leaves)}
    completed.update(CompletedNode(*each) for each in Frontier().extend(leaves, from_level=1))
    return [joined([completed[each] for each in range_subtrees(found)]) for found in ranges]


def made(count: int) -> list[bytes]:
    return [sha256(number.to_bytes(4, "big")).digest() for number in range(count)]


@pytest.mark.parametrize("size", range(len(ROOTS)))
def test_root_of_the_first_reference_leaves_equals_the_published_root(size: int) -> None:
    assert root_of(LEAVES[:size]).hex() == ROOTS[size]


@pytest.mark.parametrize(("index", "size", "nodes"), PATHS)
def test_inclusion_proof_of_a_reference_leaf_equals_the_published_proof(
    index: int, size: int, nodes: Sequence[str]
) -> None:
    proof = hashes(LEAVES[:size], inclusion_ranges(index, size))

    assert [each.hex() for each in proof] == [NODES[name] for name in nodes]
    assert verifies_inclusion(LEAVES[index], index, size, proof, bytes.fromhex(ROOTS[size]))


@pytest.mark.parametrize(("first", "second", "nodes"), CONSISTENT)
def test_consistency_proof_of_two_reference_trees_equals_the_published_proof(
    first: int, second: int, nodes: Sequence[str]
) -> None:
    proof = hashes(LEAVES[:second], consistency_ranges(first, second))

    assert [each.hex() for each in proof] == [NODES[name] for name in nodes]
    roots = bytes.fromhex(ROOTS[first]), bytes.fromhex(ROOTS[second])
    assert verifies_consistency(first, roots[0], second, roots[1], proof)


def test_proofs_of_all_trees_up_to_24_leaves_equal_the_definitions_of_the_rfc_and_verify() -> None:
    leaves = made(24)
    for size in range(1, 25):
        root = root_of(leaves[:size])
        assert root == tree_hash(leaves[:size])
        for index in range(size):
            proof = hashes(leaves[:size], inclusion_ranges(index, size))
            assert proof == path(index, leaves[:size])
            assert verifies_inclusion(leaves[index], index, size, proof, root)
        for first in range(1, size + 1):
            proof = hashes(leaves[:size], consistency_ranges(first, size))
            assert proof == subproof(first, leaves[:size], complete=True)
            assert verifies_consistency(first, tree_hash(leaves[:first]), size, root, proof)


@settings(max_examples=40)
@given(st.integers(1, 100), st.data())
def test_changed_inclusion_proof_never_verifies(size: int, data: st.DataObject) -> None:
    leaves = made(size)
    index = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size).filter(lambda each: each != index))
    root, proof = tree_hash(leaves), path(index, leaves)

    assert verifies_inclusion(leaves[index], index, size, proof, root)
    assert not verifies_inclusion(leaves[index], other, size, proof, root)
    assert not verifies_inclusion(EMPTY_ROOT, index, size, proof, root)
    assert not verifies_inclusion(leaves[index], index, size, [*proof, EMPTY_ROOT], root)
    assert not verifies_inclusion(leaves[index], index, size, proof, EMPTY_ROOT)
    for place in range(len(proof)):
        assert not verifies_inclusion(leaves[index], index, size, proof[:place] + proof[place + 1 :], root)
        changed = [*proof[:place], EMPTY_ROOT, *proof[place + 1 :]]
        assert not verifies_inclusion(leaves[index], index, size, changed, root)


@settings(max_examples=40)
@given(st.integers(2, 100), st.data())
def test_changed_consistency_proof_and_a_forked_tree_never_verify(size: int, data: st.DataObject) -> None:
    leaves = made(size)
    first = data.draw(st.integers(1, size - 1))
    old, new = tree_hash(leaves[:first]), tree_hash(leaves)
    proof = subproof(first, leaves, complete=True)
    forked = [*leaves[: first - 1], EMPTY_ROOT, *leaves[first:]]

    assert verifies_consistency(first, old, size, new, proof)
    assert not verifies_consistency(first, EMPTY_ROOT, size, new, proof)
    assert not verifies_consistency(first, old, size, EMPTY_ROOT, proof)
    assert not verifies_consistency(size, new, first, old, proof)
    assert not verifies_consistency(
        first, old, size, tree_hash(forked), subproof(first, forked, complete=True)
    )
    for place in range(len(proof)):
        assert not verifies_consistency(first, old, size, new, proof[:place] + proof[place + 1 :])
        changed = [*proof[:place], EMPTY_ROOT, *proof[place + 1 :]]
        assert not verifies_consistency(first, old, size, new, changed)
    assert not verifies_consistency(first, old, size, new, [*proof, EMPTY_ROOT])


@settings(max_examples=40)
@given(st.lists(st.integers(0, 20), max_size=8))
def test_tree_that_grows_in_steps_has_the_root_and_the_subtrees_of_one_that_grows_at_once(
    steps: list[int],
) -> None:
    leaves = made(sum(steps))
    frontier, completed, begin = Frontier(), list[CompletedNode](), 0
    for step in steps:
        completed += frontier.extend(leaves[begin : begin + step], from_level=3)
        begin += step

    assert frontier.root == tree_hash(leaves)
    for subtree, found in completed:
        assert found == tree_hash(leaves[slice(*subtree.leaves)])
    assert len(completed) == sum(len(leaves) >> level for level in range(3, 12))


def test_empty_tree_is_a_prefix_of_every_tree_without_a_proof() -> None:
    assert verifies_consistency(0, EMPTY_ROOT, 5, root_of(LEAVES[:5]), [])
    assert not verifies_consistency(0, LEAVES[0], 5, root_of(LEAVES[:5]), [])


@pytest.mark.parametrize(("index", "size"), [(0, 0), (3, 3), (-1, 3)])
def test_inclusion_proof_of_a_leaf_that_the_tree_does_not_have_is_refused(index: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"a tree of {size} leaves has no leaf at index {index}"):
        inclusion_ranges(index, size)


@pytest.mark.parametrize(("first", "second"), [(0, 3), (4, 3)])
def test_merkle_consistency_proof_between_impossible_tree_sizes_is_refused(first: int, second: int) -> None:
    with pytest.raises(ValueError, match=f"there is no proof from size {first} to size {second}"):
        consistency_ranges(first, second)


def test_frontier_with_a_missing_subtree_is_refused() -> None:
    with pytest.raises(ValueError, match="a tree of 3 leaves has 2 complete subtrees, not 1"):
        Frontier(3, [EMPTY_ROOT])
