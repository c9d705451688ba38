"""Streams that the control plane requests from this node: it dials out to the API with the credential of its session.

A request changes nothing on the host, so it needs no fence. The slot's stored order decides whether the slot belongs to
the allocation in the request: a late request never gets the output of the next tenant.
"""

import structlog

from events.values import NodeId
from node_agent.host.desired_slice import network_of
from node_agent.host.host import Host
from node_agent.host.slices import HostUnreadable
from node_agent.slots.slots import Slots
from node_agent.transport.client import ControlPlane, ControlPlaneUnavailable, RequestRejected
from tasks.fields import line
from tasks.reasons import StreamCode
from tasks.reports import Reason
from tasks.streams import MAX_SERIAL_LOG, SerialLogSent, StreamRequest, text_of

log = structlog.get_logger(__name__)


class Streams:
    """Answers of a node to requests for streams. Thread-safe."""

    def __init__(self, node_id: NodeId, host: Host, slots: Slots, control_plane: ControlPlane) -> None:
        self._node_id, self._host, self._slots = node_id, host, slots
        self._control_plane = control_plane

    def open(self, request: StreamRequest) -> None:
        """Open the requested stream. A failure is sent to the control plane, which repeats nothing."""
        try:
            self._control_plane.send_serial_log(self._serial_log(request))
        except RequestRejected as refused:
            # The control plane no longer waits for this answer, or has it already.
            log.info("stream_answer_refused", stream_id=str(request.stream_id), reason=refused.reason)
        except ControlPlaneUnavailable as error:
            log.warning("stream_answer_not_sent", stream_id=str(request.stream_id), reason=str(error))

    def _serial_log(self, request: StreamRequest) -> SerialLogSent:
        try:
            found = self._read(request)
        except HostUnreadable as error:
            return _failed(request, "host_unreadable", str(error))
        except Exception as error:
            log.exception("stream_failed", stream_id=str(request.stream_id))
            return _failed(request, "internal_error", f"{type(error).__name__}: {error}")
        if found is None:
            reason = f"slot {request.slot_id} has no machine of allocation {request.allocation_id}"
            return _failed(request, "slice_not_on_node", reason)
        content, size = found
        return SerialLogSent(stream_id=request.stream_id, text=text_of(content), kept_bytes=size)

    def _read(self, request: StreamRequest) -> tuple[bytes, int] | None:
        """Return the end and the size of the serial log, or None. Raises `HostUnreadable`."""
        slots = (slot for slot in self._slots if slot.slot_id == request.slot_id)
        held = next((slot.held for slot in slots), None)
        if request.node_id != self._node_id or held is None:
            return None
        order = held.order
        if order.allocation_id != request.allocation_id:
            return None
        network = network_of(order.slot_id, order.body.network)
        return self._host.serial_log(network, order.allocation_id, MAX_SERIAL_LOG)


def _failed(request: StreamRequest, code: StreamCode, message: str) -> SerialLogSent:
    reason = Reason(code=code, message=line(message))
    return SerialLogSent(stream_id=request.stream_id, failure=reason)
