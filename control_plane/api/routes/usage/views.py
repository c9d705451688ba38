"""Responses of `/v1/usage`. Amounts are text, so that no decimal is lost."""

from datetime import datetime
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel

from read_models.usage.amounts import Amount, EntryKind
from read_models.usage.entries import Entry, Total
from read_models.usage.unused import Unused


class AmountView(BaseModel):
    """An amount of usage. Both are decimal numbers with six decimals: the seconds of all slots, which are exact, and
    their price in the currency of the deployment, which is rounded once, half to even.
    """

    slot_seconds: str
    price: str


class GroupView(BaseModel):
    """The usage of one group, and the number of its entries.

    `key` is the project, the SKU or the value of the label; null for allocations without the label.
    """

    key: str | None
    amount: AmountView
    entries: int


class UnusedReservationView(BaseModel):
    """The unused part of a reservation in the range: the seconds of all slots of the SKU that were reserved for the
    project, and that it did not hold. It costs nothing.
    """

    project: str
    sku: str
    slot_seconds: str


class UnusedPartView(BaseModel):
    """A time in which the unused part of a reservation did not change: `slots` from `starts_at` to `ends_at`, which are
    the `reserved` slots minus the `held` ones.

    `reserved_by` is the position of the event that set the reservation, and `held_by` that of the last event that
    changed the number of held slots; null if the project had not held any.
    """

    project: str
    sku: str
    slots: int
    reserved: int
    held: int
    reserved_by: int
    held_by: int | None
    starts_at: datetime
    ends_at: datetime
    slot_seconds: str


class UsageView(BaseModel):
    """Usage between two times, or of a billing period. `begin` is null if everything before `end` is included; `end`
    is not in the future.

    `position` is the position of the ledger up to which events are included. The total is rounded by itself, and may
    differ from the sum of rounded groups in the last decimals. `period` is null for a range of time.
    """

    period: str | None
    begin: datetime | None
    end: datetime
    position: int
    total: AmountView
    groups: list[GroupView]
    unused_reservations: list[UnusedReservationView]
    """Unused parts of reservations, which the total does not contain; empty with a filter by label."""


class SourceView(BaseModel):
    """An event from which an entry follows."""

    position: int
    id: str
    type: str


class EntryView(BaseModel):
    """The usage of one allocation in the range: `slot_count` slots from `starts_at` to `ends_at`.

    `kind`: metered; or reversal, with a negative amount, and re_entry, which correct an entry of a closed billing
    period. `running` is whether the lease had not ended yet; the entry then grows with time until the lease ends or
    expires.
    """

    kind: EntryKind
    id: str | None
    """Id of the entry, permanent once its billing period is closed; null in a range of time."""
    billing_period: str | None
    """Period that bills the entry; null in a range of time."""
    service_period: str | None
    """Period in which the slots were used; null in a range of time."""
    corrects: str | None
    """Id of the entry that a reversal takes back and a re-entry replaces; null if there is none."""
    allocation_id: str
    project: str
    sku: str
    sku_version: int
    price_per_hour: str
    """Price of one slot per hour, a decimal number in the currency of the deployment."""
    slot_count: int
    labels: dict[str, str]
    starts_at: datetime
    ends_at: datetime
    running: bool
    amount: AmountView
    events: list[SourceView]


class PeriodView(BaseModel):
    """A billing period. `state`: closed, or open, which is the time since the last closed period.

    `through` is the ledger position up to which events determine the usage of a closed period. `position`, `closed_at`
    and `closed_by` are those of the event that closed it. All four are null for the open period. It has
    the end of the present calendar month as `ends_at`.
    """

    name: str
    state: Literal["closed", "open"]
    starts_at: datetime
    ends_at: datetime
    through: int | None
    position: int | None
    closed_at: datetime | None
    closed_by: str | None


class PeriodBill(PeriodView):
    """A billing period with the totals of its bill, in the projects of the caller: usage in the period, corrections of
    earlier periods, and both together.
    """

    metered: AmountView
    corrections: AmountView
    total: AmountView


def amount_view(amount: Amount) -> AmountView:
    return AmountView(slot_seconds=f"{amount.slot_seconds:f}", price=f"{amount.price:f}")


def group_view(total: Total) -> GroupView:
    return GroupView(key=total.key, amount=amount_view(total.amount), entries=total.entries)


def part_view(part: Unused) -> UnusedPartView:
    seconds = f"{part.slot_seconds:.6f}"
    return UnusedPartView(
        project=part.project,
        sku=part.sku,
        slots=part.slots,
        reserved=part.reserved,
        held=part.held,
        reserved_by=part.reserved_by,
        held_by=part.held_by,
        starts_at=part.starts_at,
        ends_at=part.ends_at,
        slot_seconds=seconds,
    )


def unused_view(project: str, sku: str, slot_seconds: Decimal) -> UnusedReservationView:
    return UnusedReservationView(project=project, sku=sku, slot_seconds=f"{slot_seconds:.6f}")


def entry_view(entry: Entry) -> EntryView:
    return EntryView(
        kind=entry.kind,
        id=entry.id,
        billing_period=entry.billing_period,
        service_period=entry.service_period,
        corrects=entry.corrects,
        allocation_id=entry.allocation_id,
        project=entry.project,
        sku=entry.sku,
        sku_version=entry.sku_version,
        price_per_hour=f"{entry.price_per_hour:f}",
        slot_count=entry.slot_count,
        labels=entry.labels,
        starts_at=entry.starts_at,
        ends_at=entry.ends_at,
        running=entry.running,
        amount=amount_view(entry.amount),
        events=[
            SourceView(position=each.position, id=each.event_id, type=each.type) for each in entry.events
        ],
    )
