"""Response types of `/v1`, `/v1/projects`, `/v1/service-accounts`, `/v1/keys`, `/v1/sessions`, `/v1/principals` and
`/v1/whoami`.
"""

from datetime import datetime

from control_plane.client.answers import Action, Answer


class ProjectLimits(Answer, frozen=True):
    """Limits of a project; None does not limit anything."""

    slots: int | None = None
    gpus: int | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    public_addresses: int | None = None
    public_ports: int | None = None
    waiting_requests: int | None = None
    price_per_hour: str | None = None
    max_lease_seconds: int | None = None
    budget_per_month: str | None = None


class ProjectUse(Answer, frozen=True):
    """What the allocations of a project use."""

    slots: int = 0
    gpus: int = 0
    vcpus: int = 0
    memory_mib: int = 0
    public_addresses: int = 0
    public_ports: int = 0
    waiting_requests: int = 0
    price_per_hour: str = "0"


class Budget(Answer, frozen=True):
    """The budget of a project in the present calendar month (UTC), and what is spent and committed of it."""

    month: str
    limit: str
    spent: str
    committed: str
    remaining: str


class Reservation(Answer, frozen=True):
    """Slots of a SKU that are kept free for a project; `used`, `unused` and `short_by` are None if not known."""

    project: str
    sku: str
    slots: int
    used: int | None = None
    unused: int | None = None
    short_by: int | None = None


class PrincipalLimits(Answer, frozen=True):
    """Limits of a caller; None does not limit anything."""

    slots: int | None = None
    price_per_hour: str | None = None


class PrincipalUse(Answer, frozen=True):
    """What the allocations that a caller requested use."""

    slots: int = 0
    price_per_hour: str = "0"


class PrincipalQuota(Answer, frozen=True):
    actor: str
    limits: PrincipalLimits
    used: PrincipalUse


class Project(Answer, frozen=True):
    id: str
    state: str
    description: str
    reason: str | None = None
    project_network_id: str | None = None
    limits: ProjectLimits | None = None
    used: ProjectUse | None = None
    budget: Budget | None = None
    reservations: tuple[Reservation, ...] = ()
    allowed_actions: dict[str, Action] | None = None


class ServiceAccount(Answer, frozen=True):
    id: str
    description: str
    role: str
    state: str
    scopes: tuple[str, ...]
    projects: tuple[str, ...] | None = None
    reason: str | None = None
    allowed_actions: dict[str, Action] | None = None


class Key(Answer, frozen=True):
    id: str
    name: str
    role: str
    state: str
    scopes: tuple[str, ...]
    projects: tuple[str, ...] | None = None
    service_account: str | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    last_used_from: str | None = None
    replaces: str | None = None
    successor: str | None = None
    reason: str | None = None
    allowed_actions: dict[str, Action] | None = None


class IssuedKey(Key, frozen=True, kw_only=True):
    key: str


class Session(Answer, frozen=True):
    id: str
    actor: str
    credential: str
    credential_kind: str
    label: str
    state: str
    role: str
    scopes: tuple[str, ...]
    started_at: datetime
    expires_at: datetime
    idle_seconds: int
    projects: tuple[str, ...] | None = None
    last_used_at: datetime | None = None
    last_used_from: str | None = None
    refusal: str | None = None
    reason: str | None = None
    allowed_actions: dict[str, Action] | None = None


class StartedSession(Session, frozen=True, kw_only=True):
    secret: str


class LoginProvider(Answer, frozen=True):
    name: str
    issuer: str
    client_id: str
    audience: str
    scope: str


class Capabilities(Answer, frozen=True):
    version: str
    logins: tuple[LoginProvider, ...] = ()


class RevokedPrincipal(Answer, frozen=True):
    actor: str
    reason: str
    revoked_at: datetime | None = None


class AccessRow(Answer, frozen=True):
    request_id: str
    opened_at: datetime
    method: str
    path: str
    count: int
    position: int | None = None
    principal: str | None = None
    credential: str | None = None
    source: str | None = None
    status: int | None = None
    outcome: str | None = None
    reasons: tuple[str, ...] = ()
    duration_ms: int | None = None


class Caller(Answer, frozen=True):
    actor: str
    role: str
    scopes: tuple[str, ...]
    projects: tuple[str, ...] | None = None
    credential: str | None = None
    credential_kind: str | None = None
    expires_at: datetime | None = None
    currency: str | None = None
    """Currency of all prices and amounts (ISO 4217)."""
    tasks_kept_seconds: int | None = None
    """How long tasks are listed after they succeeded or were superseded."""
    failed_tasks_kept_seconds: int | None = None
    """How long other ended tasks are listed."""
