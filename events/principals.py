"""Facts about callers that identity providers name. Stream: `principal-<SHA-256 of the actor>`."""

from datetime import datetime

from events.facts import Fact, Record


class PrincipalLimits(Record, frozen=True, omit_defaults=True):
    """Limits of the allocations that one caller requested, in all projects together (ALC-13). An absent limit does not
    limit anything.
    """

    slots: int | None = None
    """Number of slots."""
    price_per_hour: str | None = None
    """Sum of the prices per hour, a decimal number in the currency of the deployment."""


class PrincipalRevoked(Fact, frozen=True):
    """The tokens of a caller that were issued until now were revoked. A token issued later is accepted again."""

    actor: str
    """The caller as recorded in the ledger, such as `user:corp/alice`."""
    reason: str
    """Reason that the administrator gave."""
    revoked_at: datetime
    """Time of the revocation: a token is refused if its time of issue is not later."""


class PrincipalLimitsSet(Fact, frozen=True):
    """An administrator set the limits of a caller. Allocations that exist keep what they have, even beyond a limit."""

    actor: str
    """The caller as recorded in the ledger, such as `user:corp/alice`."""
    limits: PrincipalLimits
    """All limits of the caller from now on, which replace the previous ones; empty if it has none any more."""


PrincipalFact = PrincipalRevoked | PrincipalLimitsSet
