"""Facts about callers that identity providers name. Stream: `principal-<SHA-256 of the actor>`."""

from datetime import datetime

from events.facts import Fact


class PrincipalRevoked(Fact, frozen=True):
    """The tokens of a caller that were issued until now were revoked. A token issued later is accepted again."""

    actor: str
    """The caller as recorded in the ledger, such as `user:corp/alice`."""
    reason: str
    """Reason that the administrator gave."""
    revoked_at: datetime
    """Time of the revocation: a token is refused if its time of issue is not later."""
