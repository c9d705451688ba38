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


class Usage(Answer, frozen=True):
    """Usage in a range of time; `begin` is None if the range begins with the first usage."""

    end: datetime
    position: int
    total: Amount
    groups: tuple[Group, ...] = ()
    begin: datetime | None = None


class Source(Answer, frozen=True):
    """An event from which an entry follows."""

    position: int
    id: str
    type: str


class UsageEntry(Answer, frozen=True):
    """The usage of one allocation in a range of time. `running`: its lease had not ended yet."""

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
