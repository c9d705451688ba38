"""Passes over the requests that wait for capacity: place the requests that fit now, and keep nodes for the first
requests that do not fit.

The leader of the dispatcher begins a pass when it has read an event that may give a waiting request capacity, and every
`PASS_SECONDS`: capacity can also come back without an event, such as with the heartbeat of a node. Nothing is lost if
a pass ends early or two run at the same time: each placement is a command that takes effect once.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from control_plane.commands.waiting import (
    Placing,
    forget_others,
    keep_node,
    queued_requests,
    try_to_place,
)
from control_plane.decisions.waiting import Keep, Outcome, QueuedRequest, Try, one_pass
from control_plane.handle import Handle
from control_plane.outage import DATABASE_UNAVAILABLE
from events.allocations import AllocationDequeued, AllocationQueued
from events.envelope import Recorded
from events.facts import Fact
from events.ingress import IngressRemoved
from events.nodes import (
    NodeAddressesChanged,
    NodeReadmitted,
    NodeRecovered,
    NodeUncordoned,
)
from events.principals import PrincipalLimitsSet
from events.projects import ProjectLimitsSet
from events.slots import (
    SlotApproved,
    SlotForceReleased,
    SlotReadmitted,
    SlotRecovered,
    SlotReinstated,
    SlotReleased,
    SlotSkusChanged,
)
from events.values import AllocationId

log = structlog.get_logger()
PASS_SECONDS: Final = 5.0
"""Time in seconds from the end of a pass to the begin of the next one, if no event begins a pass earlier."""
_GIVING: Final = (
    AllocationQueued,
    AllocationDequeued,
    IngressRemoved,
    NodeAddressesChanged,
    NodeReadmitted,
    NodeRecovered,
    NodeUncordoned,
    PrincipalLimitsSet,
    ProjectLimitsSet,
    SlotApproved,
    SlotForceReleased,
    SlotReadmitted,
    SlotRecovered,
    SlotReinstated,
    SlotReleased,
    SlotSkusChanged,
)
"""Types of facts after which a pass may place a waiting request, or after which another request is the first one."""


def may_give_capacity(batch: Iterable[Recorded[Fact]]) -> bool:
    """Return whether a waiting request may be placed after one of these events."""
    return any(isinstance(each.fact, _GIVING) for each in batch)


async def follow_capacity(handle: Handle, placing: Placing, changed: asyncio.Event) -> None:
    """Begin a pass whenever `changed` is set, and every `PASS_SECONDS`, until cancelled."""
    while True:
        changed.clear()
        try:
            await pass_over_queue(handle, placing)
        except DATABASE_UNAVAILABLE as error:
            log.warning("database_unavailable", error=str(error))
        except Exception:  # a defect of the queue must not stop the orders of nodes
            log.exception("placement_of_waiting_requests_interrupted")
        try:
            await asyncio.wait_for(changed.wait(), PASS_SECONDS)
        except TimeoutError:
            continue


async def pass_over_queue(handle: Handle, placing: Placing) -> int:
    """Make a pass over the waiting requests. If the pass released a node that was kept, make a second one, because
    requests that the first pass tried before the release may fit on this node. Return the number of placed requests.
    """
    placed, released = await _one_pass(handle, placing)
    if released:
        more, _ = await _one_pass(handle, placing)
        placed += more
    return placed


async def _one_pass(handle: Handle, placing: Placing) -> tuple[int, bool]:
    """Make a pass over the waiting requests. Return the number of requests that the pass placed, and whether it
    released a node that was kept.
    """
    async with handle.engine.connect() as conn:
        queue = await queued_requests(conn)
    if not queue:
        return 0, False
    placed, kept = 0, list[AllocationId]()
    steps, outcome = one_pass(queue), None
    while True:
        try:
            step = next(steps) if outcome is None else steps.send(outcome)
        except StopIteration:
            break
        match step:
            case Try(request=queued):
                outcome = await _tried(handle, queued, placing)
                placed += outcome is Outcome.PLACED
            case Keep(request=queued):
                await keep_node(handle, queued, placing)
                kept.append(queued.request.allocation_id)
                outcome = Outcome.NO_CAPACITY
    return placed, await forget_others(handle, kept)


async def _tried(handle: Handle, queued: QueuedRequest, placing: Placing) -> Outcome:
    """Try to place a waiting request. If the attempt fails because of a defect, log the defect and return
    `Outcome.GONE`, so that all later requests are still tried.
    """
    try:
        return await try_to_place(handle, queued, placing)
    except DATABASE_UNAVAILABLE:
        raise
    except Exception:  # a defect of one request must not stop the others
        log.exception(
            "placement_of_waiting_request_failed_unexpectedly", allocation=queued.request.allocation_id
        )
        return Outcome.GONE
