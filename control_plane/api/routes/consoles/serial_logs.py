"""`/v1/allocations/{allocation}/serial-log`: the output of a slice's serial port, which its node keeps. The node keeps
the end of it for some days after the removal of the slice.
"""

import asyncio
import io
from typing import Annotated, Final, cast

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from control_plane.api.catalogue.naming_route import NamingRoute
from control_plane.api.requests.access import access
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import keys_of, plane_of
from control_plane.api.routes.allocations import found
from control_plane.api.views.allocation_views import AllocationView
from control_plane.commands.loaded import check_supported
from control_plane.database import reading
from control_plane.decisions.access import Scope
from control_plane.decisions.allocation import SECOND_PLACEMENT
from control_plane.decisions.refusals import Conflict, Malformed, NotYetKnown, Objection
from control_plane.queues.node_streams import ANSWER_SECONDS, serial_log
from events.values import AllocationId, SlotId, new_uuid, node_of
from tasks.reports import Reason
from tasks.streams import KEPT_LOG_DAYS, STREAMS, SerialLogSent, StreamRequest

router = APIRouter(
    prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS, route_class=NamingRoute
)
AT_ONCE: Final = 16
"""Number of serial logs that one process fetches from nodes at the same time; further requests wait."""
_MOST_LINES: Final = 100_000

SlotNumber = Annotated[
    int, Query(ge=0, le=63, description="Number of the slot among those of the allocation, from 0.")
]

Attempt = Annotated[
    int | None,
    Query(
        ge=1,
        le=SECOND_PLACEMENT,
        description="Number of the placement, counted from 1; by default the newest. After a failed start, an"
        " allocation may have been placed a second time.",
    ),
]


class SerialLogView(BaseModel):
    """Newest output of the serial port of a slice. The text comes from the guest, and may contain control
    characters.
    """

    allocation_id: str
    slot_id: str
    node_id: str
    text: str
    kept_bytes: int
    """Size in bytes of the log that the node keeps; of a removed slice, the size that its log had at the removal."""
    truncated: bool
    """Whether older output is left out of `text`."""


@router.get("/{allocation}/serial-log", openapi_extra=access(Scope.ALLOCATIONS_WRITE))
async def show_serial_log(
    request: Request,
    allocation: str,
    *,
    slot: SlotNumber = 0,
    attempt: Attempt = None,
    tail: Annotated[
        int | None, Query(ge=1, le=_MOST_LINES, description="Number of lines, counted from the end.")
    ] = None,
) -> SerialLogView:
    """Show the serial output of a slice: of its present and its earlier boots, at most the last mebibyte.

    The node of the slice keeps the log, and is asked for it. After the removal of the slice it keeps the last 256 KiB,
    until the next slice of the slot has ended, at most seven days. The output may contain secrets that the guest
    printed, so that reading it needs the scope that changes allocations. 503 if the node does not answer within ten
    seconds.
    """
    view = await found(request, allocation)
    name, slot_id = AllocationId(view.id), _slot_of(view, slot, attempt)
    async with cast(asyncio.Semaphore, request.app.state.serial_logs):
        sent = await _fetched(request, name, slot_id)
    if sent.failure is not None:
        raise Conflict(_objection(sent.failure, view, slot_id))
    text, kept = sent.text or "", sent.kept_bytes
    shown = text if tail is None else _last_lines(text, tail)
    return SerialLogView(
        allocation_id=name,
        slot_id=slot_id,
        node_id=node_of(slot_id),
        text=shown,
        kept_bytes=kept,
        truncated=len(shown) < len(text) or len(text.encode(errors="replace")) < kept,
    )


async def _fetched(request: Request, allocation: AllocationId, slot: SlotId) -> SerialLogSent:
    """Request the serial log of a slice from its node and return the answer. Raises `NotYetKnown` if the node does not
    answer in time, and `Conflict` if its agent is too old.
    """
    plane, seal, node = plane_of(request), keys_of(request).seal, node_of(slot)
    async with reading(plane.engine) as conn:
        await check_supported(conn, [node], STREAMS)
        now = await plane.handle.clock(conn)
    wanted = StreamRequest(
        stream_id=new_uuid(), kind="serial_log", node_id=node, slot_id=slot, allocation_id=allocation
    )
    sent = await serial_log(plane.redis, lambda text, until: seal(text, until, None), wanted, now)
    if sent is None:
        reason = f"node {node} did not answer within {ANSWER_SECONDS:.0f} s; retry when it is reachable"
        raise NotYetKnown(Objection("node_not_responding", reason))
    return sent


def _slot_of(view: AllocationView, number: int, attempt: int | None) -> SlotId:
    """Return the id of the slot with this number in a placement of an allocation: `attempt`, or None for the newest.
    Raises `Malformed` if there is no such placement or slot, and `Conflict` if the allocation has had no slots.
    """
    newest = 1 if view.replaced is None else view.replaced.attempt
    if attempt is not None and attempt > newest:
        reason = f"the allocation has no placement {attempt}; its newest one is {newest}"
        raise Malformed(Objection("unknown_placement", reason, parameter="attempt"))
    slots = [each.slot_id for each in view.slots]
    if view.replaced is not None and attempt is not None and attempt < newest:
        slots = view.replaced.vacated
    if not slots:
        reason = f"allocation {view.id} is {view.state} and has had no slices"
        raise Conflict(Objection("slice_not_on_node", reason))
    if number >= len(slots):
        reason = f"the allocation has no slot {number}; it has {len(slots)} slots, counted from 0"
        raise Malformed(Objection("unknown_slot_index", reason, parameter="slot"))
    return SlotId(slots[number])


def _objection(failure: Reason, view: AllocationView, slot: SlotId) -> Objection:
    """Return the reason for the caller, for the reason that a node has reported."""
    was_removed = view.state in ("failed", "released") or slot not in [each.slot_id for each in view.slots]
    if failure.code != "slice_not_on_node" or not was_removed:
        return Objection(_code(failure.code), failure.message)
    return Objection(
        "serial_log_not_kept",
        f"node {node_of(slot)} has no serial log of {view.id} in slot {slot}: the slice was never created, or its log is"
        f" deleted. A node keeps the log of a removed slice until the next slice of the slot has ended, for at most"
        f" {KEPT_LOG_DAYS} days, and not after a reboot",
    )


def _last_lines(text: str, count: int) -> str:
    """Return the last lines of a text. Only a line feed ends a line: a terminal's output has other control
    characters inside its lines.
    """
    return "".join(io.StringIO(text, newline="\n").readlines()[-count:])


def _code(reported: str) -> str:
    """Return the reason code of the API for the reason code that a node reported. An unexpected code, such as one of a
    newer node, becomes `stream_failed`.
    """
    return reported if reported in ("slice_not_on_node", "host_unreadable") else "stream_failed"
