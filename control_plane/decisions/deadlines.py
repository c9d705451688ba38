"""Time limits of allocations.

Orders and deadlines follow from the SKU's content that the allocation recorded at its creation, never from the present
catalogue: an order that is derived again must have the same content, or its node refuses it.
"""

from datetime import timedelta
from typing import Final

from events.entries import SkuContent

DELIVERY_LIMIT: Final = timedelta(seconds=30)
"""Maximum total time of the delivery of an order to its node and of the report back."""
GRACE: Final = timedelta(seconds=30)
"""Time that a guest gets to shut down by itself before it is switched off."""
STOP_WITHIN: Final = timedelta(minutes=10)
"""Time until all slices must be proved to be off. Long enough for a node that reboots in the meantime."""


def ready_within(sku: SkuContent) -> timedelta:
    """Return the time from placement to the allocation's deadline. It is longer than the time that the node waits, so
    that the node's report of a failure arrives first.
    """
    return timedelta(seconds=sku.provisioning_seconds) + DELIVERY_LIMIT
