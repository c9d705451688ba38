"""Histories of a ledger as its sealer signs them: trees over chosen leaves, heads and consistency proofs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from control_plane.audit.heads import Head, Part, sign_head, text_digest
from events.ledger.tree import Frontier, Range, consistency_ranges
from tasks.agent_api import HeadsConsistent, HeadSizes
from tasks.signing import Signer, new_private_key

SEALER: Final = Signer.of_pem(new_private_key())
MOMENT: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def leaves_of(name: str, count: int) -> list[bytes]:
    """Return leaves that differ between histories with different names."""
    return [sha256(f"{name} {index}".encode()).digest() for index in range(count)]


class History:
    """A history of a ledger as its sealer signed it: `heads[i]` is the signed text of head i + 1, for a tree of
    `sizes[i]` leaves.
    """

    def __init__(
        self,
        leaves: Sequence[bytes],
        sizes: Sequence[int],
        *,
        epoch: int = 1,
        before: Sequence[str] = (),
        signer: Signer = SEALER,
    ) -> None:
        self._leaves = leaves
        self.heads = list(before)
        for size in sizes:
            head = Head(
                number=len(self.heads) + 1,
                size=size,
                root=self._root(Range(0, size)).hex(),
                epoch=epoch,
                sealed_at=MOMENT,
                previous=text_digest(self.heads[-1]) if self.heads else None,
                state=dict.fromkeys(Part, "0" * 64),
            )
            self.heads.append(sign_head(signer, head).text)

    def proof(self, sizes: HeadSizes) -> HeadsConsistent | None:
        """Return the consistency proof of two sizes, or None if the history is shorter than the second size."""
        if sizes.second > len(self._leaves):
            return None
        ranges = consistency_ranges(sizes.first, sizes.second)
        return HeadsConsistent(hashes=tuple(self._root(each).hex() for each in ranges))

    def _root(self, leaves: Range) -> bytes:
        frontier = Frontier()
        frontier.extend(self._leaves[leaves.begin : leaves.end], from_level=64)
        return frontier.root
