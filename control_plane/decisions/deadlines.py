"""Time limits of allocations.

Orders and deadlines follow from the SKU's content that the allocation recorded at its creation, never from the present
catalogue: an order that is derived again must have the same content, or its node refuses it.
"""

from datetime import datetime, timedelta
from typing import Final

from events.entries import SkuContent

DELIVERY_LIMIT: Final = timedelta(seconds=30)
"""Maximum total time of the delivery of an order to its node and of the report back."""
GRACE: Final = timedelta(seconds=30)
"""Time that a guest gets to shut down by itself before it is switched off."""
STOP_WITHIN: Final = timedelta(minutes=10)
"""Time until all slices must be proved to be off. Long enough for a node that reboots in the meantime."""
RELEASE_WITHIN: Final = timedelta(minutes=10)
"""Time from the release or failure of an allocation until all its slots must be proved empty, after which the release
is recorded as overdue. Long enough for a node that reboots in the meantime.
"""


def release_deadline(began_at: datetime, up_since: datetime | None) -> datetime:
    """Return the deadline of a release that began at `began_at`. The time before `up_since`, when the control plane was
    not running, does not count: nodes could get no order and deliver no proof.
    """
    return (began_at if up_since is None else max(began_at, up_since)) + RELEASE_WITHIN


def deadline_after_outage(deadline: datetime, within: timedelta, up_since: datetime | None) -> datetime:
    """Return when a recorded deadline passes, which was set `within` before it. The time before `up_since`, when the
    control plane was not running, does not count: nodes could get no order and deliver no report.
    """
    return deadline if up_since is None else max(deadline, up_since + within)


def ready_within(sku: SkuContent) -> timedelta:
    """Return the time from placement to the allocation's deadline. It is longer than the time that the node waits, so
    that the node's report of a failure arrives first.
    """
    return timedelta(seconds=sku.provisioning_seconds) + DELIVERY_LIMIT
