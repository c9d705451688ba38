"""`/v1/allocations/{allocation}/serial-log`: the output of a slice's serial port, which its node keeps."""

import asyncio
import io
from typing import Annotated, Final, cast

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from control_plane.api.catalogue.naming_route import NamingRoute
from control_plane.api.requests.access import access
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import keys_of, plane_of
from control_plane.api.routes.allocations import slot_on_node
from control_plane.commands.loaded import check_supported
from control_plane.database import reading
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Conflict, NotYetKnown, Objection
from control_plane.queues.node_streams import ANSWER_SECONDS, serial_log
from events.values import AllocationId, SlotId, new_uuid, node_of
from tasks.streams import STREAMS, SerialLogSent, StreamRequest

router = APIRouter(
    prefix="/v1/allocations", tags=["allocations"], responses=PROBLEMS, route_class=NamingRoute
)
AT_ONCE: Final = 16
"""Number of serial logs that one process fetches from nodes at the same time; further requests wait."""
_MOST_LINES: Final = 100_000

SlotNumber = Annotated[
    int, Query(ge=0, le=63, description="Number of the slot among those of the allocation, from 0.")
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
    """Size in bytes of the log that the node keeps."""
    truncated: bool
    """Whether older output is left out of `text`."""


@router.get("/{allocation}/serial-log", openapi_extra=access(Scope.ALLOCATIONS_WRITE))
async def show_serial_log(
    request: Request,
    allocation: str,
    *,
    slot: SlotNumber = 0,
    tail: Annotated[
        int | None, Query(ge=1, le=_MOST_LINES, description="Number of lines, counted from the end.")
    ] = None,
) -> SerialLogView:
    """Show the serial output of a slice: of its present and its earlier boots, at most the last mebibyte.

    The node of the slice keeps the log until the slice is removed, and is asked for it. The output may contain secrets
    that the guest printed, so that reading it needs the scope that changes allocations. 503 if the node does not answer
    within ten seconds.
    """
    name, slot_id = await slot_on_node(request, allocation, slot)
    async with cast(asyncio.Semaphore, request.app.state.serial_logs):
        sent = await _fetched(request, name, slot_id)
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
    """Request the serial log of a slice from its node and return it. Raises `Conflict` if the node does not support or
    refuses the request, and `NotYetKnown` if it does not answer in time.
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
    if sent.failure is not None:
        raise Conflict(Objection(_code(sent.failure.code), sent.failure.message))
    return sent


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
