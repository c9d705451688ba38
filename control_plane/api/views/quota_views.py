"""Views of limits, of what is used of them, and of the limits that a refused request would exceed."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from control_plane.decisions.budgets import Month, money, remaining
from control_plane.decisions.quotas import ExceededLimit, amount_text
from control_plane.decisions.reservations import Supply
from events.derived.quotas import QuotaUse
from events.principals import PrincipalLimits
from events.projects import ProjectLimits
from events.values import ProjectId, SkuName
from read_models.commitments import Commitments


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
    max_lease_seconds: int | None
    """Longest time in seconds that a lease may run, counted from its request and from each renewal."""
    budget_per_month: str | None
    """Price of all leases in a calendar month (UTC), a decimal number in the currency of the deployment."""
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


class BudgetView(BaseModel):
    """The budget of a project in the present calendar month (UTC). Amounts are decimal numbers in the currency of the
    deployment.
    """

    month: str
    """The month, such as `2026-11`."""
    limit: str
    spent: str
    """Price of the usage in the month so far."""
    committed: str
    """`spent`, and the price of the running leases until their end or the end of the month. An allocation that has not
    been active yet counts as if its lease began now."""
    remaining: str
    """Part of the budget that is not committed, at least 0."""


class ReservationView(BaseModel):
    """Slots of a SKU that are kept free for a project. `used`, `unused` and `short_by` are null in a view of the past,
    and for a retired SKU, of which no slots are kept.
    """

    project: str
    sku: str
    slots: int
    used: int | None
    """Slots of the SKU that the project holds, each until it is free again."""
    unused: int | None
    """Number of reserved slots that the project does not hold, and that other projects cannot take."""
    short_by: int | None
    """Slots that are missing, because fewer usable slots are free than all reservations of the SKU need."""


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
    """Amount that the request would add."""
    remaining: str
    """Amount that is left of the limit without the request, at least 0."""


def project_limits_view(limits: ProjectLimits) -> ProjectLimitsView:
    return ProjectLimitsView.model_validate(limits, from_attributes=True)


def project_use_view(used: QuotaUse) -> ProjectUseView:
    return ProjectUseView(**{**used._asdict(), "price_per_hour": _price(used)})


def budget_view(limit: str, month: Month, found: Commitments) -> BudgetView:
    return BudgetView(
        month=f"{month.begins_at:%Y-%m}",
        limit=limit,
        spent=money(found.spent),
        committed=money(found.committed),
        remaining=remaining(limit, found.committed),
    )


def reservation_view(project: ProjectId, sku: SkuName, slots: int, supply: Supply | None) -> ReservationView:
    own = (
        None
        if supply is None
        else next((each for each in supply.reservations if each.project == project), None)
    )
    return ReservationView(
        project=project,
        sku=sku,
        slots=slots,
        used=None if own is None else own.used,
        unused=None if own is None else own.unused,
        short_by=None if own is None or supply is None else supply.short_by(own),
    )


def principal_limits_view(limits: PrincipalLimits) -> PrincipalLimitsView:
    return PrincipalLimitsView.model_validate(limits, from_attributes=True)


def principal_use_view(used: QuotaUse) -> PrincipalUseView:
    return PrincipalUseView(slots=used.slots, price_per_hour=_price(used))


def exceeded_views(exceeded: Sequence[ExceededLimit]) -> list[ExceededLimitView]:
    return [ExceededLimitView(**each._asdict()) for each in exceeded]


def _price(used: QuotaUse) -> str:
    return amount_text(used.price_per_hour)
