"""`/v1/agent/serial-logs`: answers of nodes to requests for the serial logs of their slices."""

from fastapi import APIRouter, Request

from control_plane.api.requests.access import NODES, AuthenticatedRoute, CallingNode
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.queues.node_streams import accept_serial_log
from tasks.streams import SerialLogSent

router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS, route_class=AuthenticatedRoute)


@router.post("/serial-logs", status_code=204, openapi_extra=NODES)
async def send_serial_log(request: Request, node: CallingNode, body: SerialLogSent) -> None:
    """Answer a request for the serial log of a slice. Each request takes one answer, from the node that it was sent to;
    an answer that no request waits for is dropped.
    """
    await accept_serial_log(plane_of(request).redis, node, body)
