"""Facts about service accounts, the identities of workloads. Stream: `service-account-<account>`."""

from events.facts import Fact
from events.values import ProjectId, ServiceAccountId


class ServiceAccountCreated(Fact, frozen=True, omit_defaults=True):
    """A service account was created with its role. API keys can be issued for it from now on."""

    account: ServiceAccountId
    """Id of the new service account."""
    description: str
    """What the workload does, in the words of its owner."""
    role: str
    """Role of every key of the account, such as `caller`."""
    projects: tuple[ProjectId, ...] = ()
    """Projects that the account is limited to; empty: all."""
    scopes: tuple[str, ...] = ()
    """Scopes that the account is limited to, such as `allocations:read`; empty: all scopes of its role."""


class ServiceAccountDisabled(Fact, frozen=True):
    """A service account was disabled: each of its keys is refused from now on."""

    account: ServiceAccountId
    """Id of the disabled service account."""
    reason: str
    """Reason that the administrator gave."""


class ServiceAccountEnabled(Fact, frozen=True):
    """A disabled service account was enabled: its keys that are not revoked or expired are accepted again."""

    account: ServiceAccountId
    """Id of the enabled service account."""


ServiceAccountFact = ServiceAccountCreated | ServiceAccountDisabled | ServiceAccountEnabled
