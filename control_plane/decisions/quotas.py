"""Decisions about quotas and the price cap of a request (ALC-13): whether a project or a caller may have more."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from control_plane.decisions.refusals import Conflict, Objection, refuse_if
from events.allocations import AllocationSpecified
from events.derived.quotas import QuotaUse, amounts_of_slot
from events.principals import PrincipalLimits
from events.projects import ProjectLimits
from events.slots import SlotUse
from events.values import ProjectId

CODE: Final = "quota_exceeded"
PRICE_TOO_HIGH: Final = "price_too_high"
Scope = Literal["project", "principal"]
Limits = ProjectLimits | PrincipalLimits
_NAMED: Final = {
    "slots": "slots",
    "gpus": "GPUs",
    "vcpus": "virtual processors",
    "memory_mib": "MiB of memory",
    "public_addresses": "public addresses",
    "public_ports": "public ports",
    "waiting_requests": "requests that wait for capacity",
    "price_per_hour": "price per hour",
    "budget_per_month": "budget of this month",
}
_FIELDS: Final = {
    "slots": "/slot_count",
    "gpus": "/sku",
    "vcpus": "/sku",
    "memory_mib": "/sku",
    "waiting_requests": "/wait_for_capacity",
    "price_per_hour": "/sku",
    "budget_per_month": "/lease_seconds",
}
"""Fields of a request for an allocation that determine the requested amounts."""


class ExceededLimit(NamedTuple):
    """A limit that a request would exceed: `used` is the use without the request, `requested` what the request adds.
    `remaining` is what is left of the limit, at least 0. `holder` is the project or the caller that has the limit. The
    amounts are decimal numbers.
    """

    scope: Scope
    holder: str
    limit_name: str
    limit: str
    used: str
    requested: str
    remaining: str


class NotAdmitted(Conflict):
    """Refusal, independent of free slots: the request would exceed limits of its project or of its caller, which are
    the `exceeded` ones, or its own price cap.
    """

    def __init__(self, objections: Sequence[Objection], exceeded: Sequence[ExceededLimit] = ()) -> None:
        super().__init__(*objections)
        self.exceeded = tuple(exceeded)


def over_quota(exceeded: Sequence[ExceededLimit]) -> NotAdmitted:
    """Return the refusal of a request that would exceed these limits."""
    return NotAdmitted([*map(_objection, exceeded)], exceeded)


def refuse_over(objections: Sequence[Objection], exceeded: Sequence[ExceededLimit]) -> None:
    """Raise a refusal with other objections to a request and the limits that it would exceed, if there are any."""
    if exceeded:
        raise NotAdmitted([*objections, *map(_objection, exceeded)], exceeded)
    refuse_if(objections)


@lru_cache(maxsize=1024)
def amount_limits(limits: Limits) -> Mapping[str, int | str]:
    """Return the limits that are set for amounts in use, by name."""
    found = {name: getattr(limits, name, None) for name in QuotaUse._fields}
    return {name: limit for name, limit in found.items() if limit is not None}


def use_of(project: ProjectId, principal: str, specified: AllocationSpecified) -> SlotUse:
    """Return what each slot counts towards quotas, for an allocation that `principal` requests in `project`."""
    sku = specified.sku.content
    return SlotUse(
        project, principal, sku.gpu_count, sku.vcpus, sku.memory_mib, sku.price_per_hour, specified.sku.name
    )


def times(use: QuotaUse, count: int) -> QuotaUse:
    """Return the amounts `use` multiplied by `count`."""
    return QuotaUse._make(each * count for each in use)


def whole_use(use: SlotUse, slot_count: int) -> QuotaUse:
    """Return what an allocation of `slot_count` slots counts towards quotas, without its ingress rules. `use` is what
    one slot counts.
    """
    return times(amounts_of_slot(use), slot_count)


def exceeded_by(
    scope: Scope, holder: str, limits: Limits, used: QuotaUse, requested: QuotaUse
) -> list[ExceededLimit]:
    """Return the limits that a request would exceed. A limit that is below the use refuses only requests for more of
    the same amount.
    """
    return [
        ExceededLimit(scope, holder, name, str(limit), amount_text(had), amount_text(more), left)
        for name, limit in amount_limits(limits).items()
        for had, more in [(getattr(used, name), getattr(requested, name))]
        if more > 0 and had + more > Decimal(limit)
        for left in [amount_text(max(Decimal(limit) - had, Decimal(0)))]
    ]


def against_price(specified: AllocationSpecified, slot_count: int, most: str | None) -> list[Objection]:
    """Return the objection to a SKU with which an allocation costs more than `most` per hour; an empty list if it costs
    at most as much, or if `most` is None.
    """
    sku = specified.sku
    price = Decimal(sku.content.price_per_hour) * slot_count
    if most is None or price <= Decimal(most):
        return []
    slots = "a slot of SKU {} costs" if slot_count == 1 else f"{slot_count} slots of SKU {{}} cost"
    reason = (
        f"{slots.format(sku.name)} {amount_text(price)} per hour, more than max_price_per_hour {most};"
        " request a cheaper SKU or fewer slots, or raise max_price_per_hour"
    )
    return [Objection(PRICE_TOO_HIGH, reason, "/sku")]


def amount_text(amount: int | Decimal) -> str:
    """Return an amount as a decimal number."""
    # Without the zeros that sums of prices such as 0.50 and 0.5 have in different numbers.
    return f"{amount.normalize():f}" if isinstance(amount, Decimal) else str(amount)


def _objection(each: ExceededLimit) -> Objection:
    holder = f"project {each.holder}" if each.scope == "project" else f"caller {each.holder}"
    reason = (
        f"{holder} would exceed its limit of {_NAMED[each.limit_name]}: limit {each.limit}, used {each.used},"
        f" requested {each.requested}, remaining {each.remaining}; release allocations, or ask an admin for a higher"
        " limit"
    )
    return Objection(CODE, reason, _FIELDS.get(each.limit_name))
