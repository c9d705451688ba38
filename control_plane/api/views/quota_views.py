"""Views of limits, of what is used of them, and of the limits that a refused request would exceed."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from control_plane.decisions.quotas import ExceededLimit, amount_text
from events.derived.quotas import QuotaUse
from events.principals import PrincipalLimits
from events.projects import ProjectLimits


class PrincipalLimitsView(BaseModel):
    """Limits of a caller. A field that is null sets no limit."""

    slots: int | None
    price_per_hour: str | None


class PrincipalUseView(BaseModel):
    """What the allocations that a caller requested use, in all projects together."""

    slots: int
    price_per_hour: str
    """Sum of the prices per hour, a decimal number in the currency of the deployment."""


class ProjectLimitsView(PrincipalLimitsView):
    """Limits of a project. A field that is null sets no limit."""

    gpus: int | None
    vcpus: int | None
    memory_mib: int | None
    public_addresses: int | None
    public_ports: int | None
    waiting_requests: int | None
    """Number of requests that wait for capacity; null: the default of the deployment applies."""


class ProjectUseView(PrincipalUseView):
    """What the allocations of a project use. A slot counts from its claim until it is free again, also while it is
    releasing or quarantined; a public address or port counts until its ingress rule is removed.
    """

    gpus: int
    vcpus: int
    memory_mib: int
    public_addresses: int
    public_ports: int
    waiting_requests: int


class ExceededLimitView(BaseModel):
    """A limit that the request would exceed. Amounts are decimal numbers."""

    scope: Literal["project", "principal"]
    """Whether the limit is one of a project or one of a caller."""
    holder: str
    """The project, or the caller as the ledger records it."""
    limit_name: str
    """Name of the limit, such as `slots`."""
    limit: str
    used: str
    """Amount in use before the request; the request would add `requested`."""
    requested: str
    """What the request would add."""


def project_limits_view(limits: ProjectLimits) -> ProjectLimitsView:
    return ProjectLimitsView.model_validate(limits, from_attributes=True)


def project_use_view(used: QuotaUse) -> ProjectUseView:
    return ProjectUseView(**{**used._asdict(), "price_per_hour": _price(used)})


def principal_limits_view(limits: PrincipalLimits) -> PrincipalLimitsView:
    return PrincipalLimitsView.model_validate(limits, from_attributes=True)


def principal_use_view(used: QuotaUse) -> PrincipalUseView:
    return PrincipalUseView(slots=used.slots, price_per_hour=_price(used))


def exceeded_views(exceeded: Sequence[ExceededLimit]) -> list[ExceededLimitView]:
    return [ExceededLimitView(**each._asdict()) for each in exceeded]


def _price(used: QuotaUse) -> str:
    return amount_text(used.price_per_hour)
