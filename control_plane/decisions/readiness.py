"""The readiness check of a slice (ALC-9): its SSH banner, unless its image defines another check.

The check of the image is fixed for an allocation at its creation, by a fact of its own, so that a later change of the
image's check applies to later allocations only. Otherwise an order that is derived again from the same facts would have
another content under the same fence token, and its node would refuse it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from events.allocations import AllocationFact, ReadinessCheckSet
from events.values import AllocationId

_SSH_VERSION: Final = "SSH-"
"""First characters that an SSH server sends (RFC 4253, section 4.2)."""


@dataclass(frozen=True, slots=True)
class Check:
    """A readiness check: the guest's TCP `port` accepts a connection and sends a line that begins with `banner`.

    If `banner` is empty, an accepted connection is enough.
    """

    port: int
    banner: str

    @property
    def kind(self) -> Literal["ssh", "tcp"]:
        """Kind of service that a successful check proves."""
        return "ssh" if self.banner.startswith(_SSH_VERSION) else "tcp"


SSH: Final = Check(22, _SSH_VERSION)


def named(allocation: AllocationId, check: Check) -> tuple[ReadinessCheckSet, ...]:
    """Return the fact that sets an allocation's readiness check; none for the check `SSH`, which is the default."""
    return () if check == SSH else (ReadinessCheckSet(allocation, check.port, check.banner),)


def check_of(facts: Iterable[AllocationFact]) -> Check:
    """Return the readiness check of an allocation's slices, from its facts."""
    return next((Check(fact.port, fact.banner) for fact in facts if isinstance(fact, ReadinessCheckSet)), SSH)
