"""MAC addresses of slots: derived from the slot's id, or taken from the pool of its node (ALC-3).

In both cases a MAC has one holder in its layer-2 domain, which the claims in the ledger enforce. Pools of several nodes
of a domain may overlap. Among tens of thousands of slots some derive the same MAC: the slot that is approved later uses
its next one.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from control_plane.decisions.refusals import Conflict, Objection
from events.nodes import MacPool
from events.values import MacAddress, SlotId, mac_address

MAX_POOL: Final = 65_536
"""Largest number of MACs in a pool: a command that chooses one reads all that are taken."""
_TAIL: Final = 3
"""Number of bytes of a derived MAC that depend on the slot."""


def candidate_macs(slot: SlotId, pool: MacPool | None) -> Sequence[MacAddress]:
    """Return the MACs that a slot may have, in the order in which they are tried: those of the pool of its node, or
    those derived from its id.
    """
    return derived_macs(slot) if pool is None else pool_macs(slot, pool)


def derived_macs(slot: SlotId) -> tuple[MacAddress, ...]:
    """Return the MACs derived from the id of a slot, in the order in which they are tried (ALC-3). Each is 52:54:00
    followed by three bytes of the SHA-256 of the id: the first three bytes for the first MAC, the next three for the
    second one, and so on.
    """
    digest = sha256(slot.encode()).digest()
    return tuple(
        mac_address("52:54:00:" + digest[start : start + _TAIL].hex(":"))
        for start in range(0, len(digest) - _TAIL + 1, _TAIL)
    )


def size_of(pool: MacPool) -> int:
    """Return the number of MACs in a pool; 0 or less if its first MAC is behind its last one."""
    return _number(pool.last) - _number(pool.first) + 1


def pool_macs(slot: SlotId, pool: MacPool) -> Sequence[MacAddress]:
    """Return all MACs of a pool, in the order in which they are tried for a slot. The order begins at a MAC that
    depends on the slot, so that approvals at the same time seldom try the same one.
    """
    first, size = _number(pool.first), size_of(pool)
    start = int.from_bytes(sha256(slot.encode()).digest()[:8], "big") % size
    numbers = (*range(first + start, first + size), *range(first, first + start))
    return tuple(mac_address(each.to_bytes(6, "big").hex(":")) for each in numbers)


def no_mac_left(slot: SlotId, l2_domain: str, pool: MacPool | None) -> Conflict:
    """Return the refusal to approve or reprovision a slot because all MACs that it may have are in use."""
    if pool is None:
        reason = f"every MAC derived for slot {slot} is in use in L2 domain {l2_domain}"
        return Conflict(Objection("mac_taken", reason))
    reason = (
        f"all {size_of(pool)} MACs of the pool {pool.first} to {pool.last} are in use in L2 domain {l2_domain}, so slot"
        f" {slot} gets none; extend the pool of its node"
    )
    return Conflict(Objection("mac_pool_exhausted", reason))


def _number(mac: MacAddress) -> int:
    return int(mac.replace(":", ""), 16)
