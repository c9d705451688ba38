"""When a slice counts as usable (ALC-9): by its SSH banner, unless its image names another sign.

What an image names is fixed for an allocation at its creation, by a fact of its own. Orders are derived anew from
facts, and a node refuses another content under the same token: what is said of an image later is for later allocations.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from events.allocations import AllocationFact, ReadinessNamed
from events.values import AllocationId

_SSH_VERSION: Final = "SSH-"
"""How the first line of an SSH server begins (RFC 4253, section 4.2)."""


@dataclass(frozen=True, slots=True)
class Check:
    """The guest's TCP `port` answers with a line that begins with `banner`, or answers at all where that is empty."""

    port: int
    banner: str

    @property
    def kind(self) -> Literal["ssh", "tcp"]:
        """What is proved to answer there."""
        return "ssh" if self.banner.startswith(_SSH_VERSION) else "tcp"


SSH: Final = Check(22, _SSH_VERSION)


def named(allocation: AllocationId, check: Check) -> tuple[ReadinessNamed, ...]:
    """What there is to record of it: nothing where it is SSH's own, which an allocation has that says nothing."""
    return () if check == SSH else (ReadinessNamed(allocation, check.port, check.banner),)


def check_of(facts: Iterable[AllocationFact]) -> Check:
    """By what the slices of an allocation are found ready."""
    return next((Check(fact.port, fact.banner) for fact in facts if isinstance(fact, ReadinessNamed)), SSH)
