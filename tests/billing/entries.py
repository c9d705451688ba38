"""An example of an entry of usage, which corrects a closed billing period."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from events.values import AllocationId, Position, ProjectId, SkuName
from read_models.usage.amounts import Amount, EntryKind
from read_models.usage.entries import Entry, Place, Source

START = datetime(2026, 11, 1, tzinfo=UTC)
LABELS = {"note": 'a "quoted", text', "sum": "=1+1", "lines": "first\r\nsecond"}
ENTRY = Entry(
    place=Place(Position(3), 1),
    kind=EntryKind.REVERSAL,
    id="2026-12/2026-11/alc-1/reversal",
    billing_period="2026-12",
    service_period="2026-11",
    corrects="2026-11/2026-11/alc-1/metered",
    allocation_id=AllocationId("alc-1"),
    project=ProjectId("vision"),
    sku=SkuName("h200.one"),
    sku_version=3,
    price_per_hour=Decimal("3.2"),
    slot_count=2,
    labels=LABELS,
    starts_at=START,
    ends_at=START + timedelta(hours=1, microseconds=1),
    running=False,
    amount=Amount(Decimal("-7200.000002"), Decimal("-6.400000")),
    events=(
        Source(Position(3), "a", "allocation.requested"),
        Source(Position(7), "b", "allocation.lease_granted"),
    ),
)
