"""Response types of `/v1/usage`. Amounts are decimal numbers as text, so that no decimal is lost."""

from datetime import datetime

from control_plane.client.answers import Answer


class Amount(Answer, frozen=True):
    slot_seconds: str
    price: str


class Group(Answer, frozen=True):
    """The usage of one group; `key` is None for allocations without the label."""

    amount: Amount
    entries: int
    key: str | None = None


class UnusedReservation(Answer, frozen=True):
    """The unused part of a reservation, which costs nothing."""

    project: str
    sku: str
    slot_seconds: str


class UnusedPart(Answer, frozen=True):
    """A time in which the unused part of a reservation did not change: the `reserved` slots minus the `held` ones.
    `reserved_by` and `held_by` are the positions of the events that set these numbers.
    """

    project: str
    sku: str
    slots: int
    reserved: int
    held: int
    reserved_by: int
    starts_at: datetime
    ends_at: datetime
    slot_seconds: str
    held_by: int | None = None


class Usage(Answer, frozen=True):
    """Usage in a range of time, or of the billing period `period`; `begin` is None if the range begins with the first
    usage.
    """

    end: datetime
    position: int
    total: Amount
    groups: tuple[Group, ...] = ()
    unused_reservations: tuple[UnusedReservation, ...] = ()
    begin: datetime | None = None
    period: str | None = None


class Source(Answer, frozen=True):
    """An event from which an entry follows."""

    position: int
    id: str
    type: str


class UsageEntry(Answer, frozen=True):
    """The usage of one allocation in a range of time, or in the bill of a period. `running`: its lease had not ended
    yet.

    `kind`: metered, reversal or re_entry; a reversal is negative. `corrects` is the id of the entry that a reversal
    takes back and a re-entry replaces.
    """

    kind: str
    allocation_id: str
    project: str
    sku: str
    sku_version: int
    price_per_hour: str
    slot_count: int
    starts_at: datetime
    ends_at: datetime
    amount: Amount
    labels: dict[str, str]
    running: bool = False
    events: tuple[Source, ...] = ()
    id: str | None = None
    billing_period: str | None = None
    service_period: str | None = None
    corrects: str | None = None


class Period(Answer, frozen=True):
    """A billing period. The last four fields are None for the open period."""

    name: str
    state: str
    starts_at: datetime
    ends_at: datetime
    through: int | None = None
    position: int | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None


class PeriodBill(Answer, frozen=True):
    """A billing period with the totals of its bill."""

    name: str
    state: str
    starts_at: datetime
    ends_at: datetime
    metered: Amount
    corrections: Amount
    total: Amount
    through: int | None = None
    position: int | None = None
    closed_at: datetime | None = None
    closed_by: str | None = None
