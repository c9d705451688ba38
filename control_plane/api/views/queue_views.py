"""The present position of waiting allocations in the queue. It is in no event of an allocation, because it changes with
other requests, so only views of the present have it.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.views.allocation_views import AllocationView
from control_plane.api.views.views import ReasonView
from control_plane.commands.waiting import Placing, earliest_start, reasons_of_wait
from events.values import AllocationId
from read_models import waiting


async def with_queue(
    conn: AsyncConnection, views: Sequence[AllocationView], placing: Placing | None = None
) -> list[AllocationView]:
    """Return the views of allocations; those that wait with their position and the newest reason. With `placing`, also
    with the time at which they may be placed at the earliest.
    """
    names = [AllocationId(each.id) for each in views if each.queue is not None]
    if not names:
        return [*views]
    positions, reasons = await waiting.positions(conn, names), await reasons_of_wait(conn, names)
    shown = list[AllocationView]()
    for view in views:
        if view.queue is None:
            shown.append(view)
            continue
        name = AllocationId(view.id)
        queue = view.queue.model_copy(update={"position": positions.get(name)})
        if (reason := reasons.get(name)) is not None:
            queue = queue.model_copy(update={"reason": ReasonView(code=reason.code, message=reason.message)})
        if placing is not None:
            earliest = await earliest_start(conn, name, placing)
            queue = queue.model_copy(update={"earliest_possible_at": earliest})
        shown.append(view.model_copy(update={"queue": queue}))
    return shown
