"""Streams that the control plane requests from this node: it dials out to the API with the credential of its session.

A request changes nothing on the host, so it needs no fence. The slot's stored order decides whether the slot belongs to
the allocation in the request: a late request never gets the console of the next tenant. A serial log is read after the
slot has left the allocation too; the host returns it only for the allocation of the guest that wrote it.
"""

from collections.abc import Callable
from typing import Final, assert_never

import structlog

from events.values import AllocationId
from node_agent.host.desired_slice import network_of
from node_agent.host.host import Console, ConsoleRefused, Host
from node_agent.host.slices import HostRefused, HostUnreadable, SliceNetwork
from node_agent.operations.console_streams import MOST, MOST_SSH, OpenConsoles
from node_agent.runtime.thread_pool import ThreadPool
from node_agent.runtime.timetable import Timetable
from node_agent.settings import Settings
from node_agent.slots.slots import Slots
from node_agent.transport.client import ControlPlane, ControlPlaneUnavailable, Credentials, RequestRejected
from node_agent.transport.stream_socket import StreamSocket
from tasks.fields import line
from tasks.orders import Order
from tasks.reasons import StreamCode
from tasks.reports import Reason
from tasks.streams import MAX_SERIAL_LOG, ConsoleOpened, SerialLogSent, StreamRequest, text_of

log = structlog.get_logger(__name__)
_EXPIRY_SECONDS: Final = 3600.0
"""Time between two deletions of expired logs of removed slices."""


class Streams:
    """Opens the streams that the API requests from this node: logs, consoles, displays and SSH ports. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        session: Credentials,
        host: Host,
        slots: Slots,
        link: ControlPlane,
        *,
        timetable: Timetable,
    ) -> None:
        self._settings, self._session = settings, session
        self._host, self._slots, self._control_plane = host, slots, link
        self._consoles = OpenConsoles()
        # Opening a console waits for the control plane, and for the SSH port of the slice. Its tenant can delay the
        # answer, which would block the tasks of other slices in a thread of the task queue.
        self._openings = ThreadPool("console-openings", MOST + MOST_SSH)
        self._expiry = timetable.enter(self._delete_expired_logs, name="log_expiry", after=_EXPIRY_SECONDS)

    def open(self, request: StreamRequest) -> None:
        """Open the requested stream. A console is opened in a thread pool, so this method returns before it is open.
        A failure is reported to the control plane, which does not repeat the request; if the control plane is
        unavailable, it is only logged.
        """
        match request.kind:
            case "serial_log":
                self._send_log(request)
            case "serial_console" | "graphics" | "ssh":
                self._openings.run(lambda: self._open_console(request))
            case _:
                assert_never(request.kind)

    def close(self) -> None:
        """Close all open consoles, and open no more."""
        self._expiry.cancel(0)
        self._openings.close(0)
        self._consoles.close()

    def _open_console(self, request: StreamRequest) -> None:
        try:
            socket = StreamSocket(self._settings, self._session, request.stream_id)
        except ControlPlaneUnavailable as error:
            log.warning("slice_stream_not_opened", stream_id=str(request.stream_id), reason=str(error))
            return
        console = self._console(request)
        try:
            if isinstance(console, Reason):
                socket.opened(ConsoleOpened(failure=console))
                socket.close()
                return
            socket.opened(ConsoleOpened())
        except ControlPlaneUnavailable as error:
            log.warning("slice_stream_not_opened", stream_id=str(request.stream_id), reason=str(error))
            if not isinstance(console, Reason):
                console.close()
                self._consoles.free(request)
            return
        log.info("console_opened", stream_id=str(request.stream_id), slot_id=request.slot_id)
        self._consoles.serve(request, console, socket)

    def _console(self, request: StreamRequest) -> Console | Reason:
        network = self._network_of(request)
        if network is None:
            return _reason("slice_not_on_node", _no_slice(request))
        if (refusal := self._consoles.reserve(request)) is not None:
            return _reason("console_in_use", refusal)
        found = self._opened(request, network)
        if isinstance(found, Reason):
            self._consoles.free(request)
        return found

    def _opened(self, request: StreamRequest, network: SliceNetwork) -> Console | Reason:
        try:
            return self._opener_of(request)(network, request.allocation_id)
        except ConsoleRefused as refused:
            return _reason(refused.code, str(refused))
        except HostUnreadable as error:
            return _reason("host_unreadable", str(error))
        except Exception as error:
            log.exception("slice_stream_failed", stream_id=str(request.stream_id))
            return _reason("internal_error", f"{type(error).__name__}: {error}")

    def _opener_of(self, request: StreamRequest) -> Callable[[SliceNetwork, AllocationId], Console]:
        match request.kind:
            case "graphics":
                return self._host.open_display
            case "ssh":
                # The address is that of the slot's own verified order, and the request cannot name another one.
                return self._host.open_ssh
            case "serial_console" | "serial_log":
                return self._host.open_console
            case _:
                assert_never(request.kind)

    def _send_log(self, request: StreamRequest) -> None:
        try:
            self._control_plane.send_serial_log(self._serial_log(request))
        except RequestRejected as refused:
            # The control plane no longer waits for this answer, or has it already.
            log.info(
                "answer_to_slice_stream_request_refused",
                stream_id=str(request.stream_id),
                reason=refused.reason,
            )
        except ControlPlaneUnavailable as error:
            log.warning(
                "answer_to_slice_stream_request_not_sent", stream_id=str(request.stream_id), reason=str(error)
            )

    def _serial_log(self, request: StreamRequest) -> SerialLogSent:
        try:
            found = self._read(request)
        except HostUnreadable as error:
            return _failed(request, "host_unreadable", str(error))
        except Exception as error:
            log.exception("slice_stream_failed", stream_id=str(request.stream_id))
            return _failed(request, "internal_error", f"{type(error).__name__}: {error}")
        if found is None:
            return _failed(request, "slice_not_on_node", _no_log(request))
        content, size = found
        return SerialLogSent(stream_id=request.stream_id, text=text_of(content), kept_bytes=size)

    def _read(self, request: StreamRequest) -> tuple[bytes, int] | None:
        """Return the end of the requested serial log and the size of the whole log; None if the node has none for the
        allocation. Raises `HostUnreadable`.
        """
        order = self._newest_order(request)
        if order is None:
            return None
        network = network_of(order.slot_id, order.body.network)
        return self._host.serial_log(network, request.allocation_id, MAX_SERIAL_LOG)

    def _delete_expired_logs(self) -> float:
        try:
            self._host.delete_expired_logs()
        except HostRefused as error:
            log.warning("expired_logs_not_deleted", reason=str(error))
        return _EXPIRY_SECONDS

    def _network_of(self, request: StreamRequest) -> SliceNetwork | None:
        """Return the network of the requested slot, or None if its newest order is not of the allocation."""
        order = self._newest_order(request)
        if order is None or order.allocation_id != request.allocation_id:
            return None
        return network_of(order.slot_id, order.body.network)

    def _newest_order(self, request: StreamRequest) -> Order | None:
        """Return the newest order of the requested slot; None if the node has no such slot, or no order of it."""
        if request.node_id != self._settings.node_id:
            return None
        slots = (slot for slot in self._slots if slot.slot_id == request.slot_id)
        held = next((slot.held for slot in slots), None)
        return None if held is None else held.order


def _no_slice(request: StreamRequest) -> str:
    return (
        f"slot {request.slot_id} has no slice of allocation {request.allocation_id}: the node has not created it yet, or"
        " has removed it; the timeline of the allocation shows which"
    )


def _no_log(request: StreamRequest) -> str:
    return (
        f"slot {request.slot_id} has no serial log of allocation {request.allocation_id}: the node has not created the"
        " slice yet, or has removed it and does not keep its log any more"
    )


def _failed(request: StreamRequest, code: StreamCode, message: str) -> SerialLogSent:
    return SerialLogSent(stream_id=request.stream_id, failure=_reason(code, message))


def _reason(code: StreamCode, message: str) -> Reason:
    return Reason(code=code, message=line(message))
