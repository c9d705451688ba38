"""Streams between the control plane and a node: messages that open one, and the answer to a request for a serial log.

A stream is opened on demand, by a signed request in the node's queue. The node then dials out to the API with the
credential of its session. The request is neither an order nor an operation: it changes nothing on the node, is not
recorded by its sender, and expires within seconds. The control plane takes one answer to each request, while it waits
for the answer, and only from the node that it asked.
"""

from typing import Final, Literal
from uuid import UUID

from pydantic import Field, ValidationError

from tasks.fields import AllocationId, Flag, NodeId, SlotId, Whole, Wire, is_false
from tasks.reports import Reason

ACTOR: Final = "stream.open"
"""Name of the actor that takes requests for streams from the node's queue."""
STREAMS: Final = f"{ACTOR}/1"
"""Identifier by which a node announces that it supports requests for streams."""
CONSOLES: Final = f"{STREAMS}+console"
"""Identifier by which a node announces that it can open consoles."""
GRAPHICS: Final = f"{STREAMS}+graphics"
"""Identifier by which a node announces that it can open the displays of machines."""
SSH: Final = f"{STREAMS}+ssh"
"""Identifier by which a node announces that it can open connections to the SSH ports of slices."""
SSH_PORT: Final = 22
"""Port of a slice to which a stream of the kind `ssh` leads. The request contains neither the address nor the port."""
MAX_MESSAGE: Final = 16 * 1024
"""Maximum size in bytes of a message of a console, in both directions."""
MAX_SERIAL_LOG: Final = 1024 * 1024
"""Maximum size in bytes of the part of a serial log that a node sends: the newest output."""
MAX_KEPT_LOG: Final = 256 * 1024
"""Maximum size in bytes of the part of a serial log that a node keeps after the removal of the slice."""
KEPT_LOG_DAYS: Final = 7
"""Days after which a node deletes the serial log of a removed slice."""
KEPT_LOG_SECONDS: Final = KEPT_LOG_DAYS * 24 * 3600


StreamKind = Literal["serial_log", "serial_console", "graphics", "ssh"]
"""What a stream leads to: the log of a serial port, the serial port, the display, or the SSH port of a slice."""


class MalformedRequest(ValueError):
    """A signed text that is not a request for a stream."""


class StreamRequest(Wire):
    """Request to a node to open the stream `stream_id` of a slot. The node refuses it if the slot has no slice of the
    allocation.

    The serial log of a slice is sent after its removal too, as long as the node keeps it.
    """

    stream_id: UUID
    kind: StreamKind
    node_id: NodeId
    slot_id: SlotId
    allocation_id: AllocationId
    # Omitted if false: an agent without support for graphics refuses the unknown field.
    shared: Flag = Field(default=False, exclude_if=is_false)
    """For `graphics`: open the display although it is open in another session."""


class SerialLogSent(Wire):
    """`POST /v1/agent/serial-logs`: the answer to a request for a serial log.

    Either `text`, the newest output of the slice's serial port, or `failure` is set. A failure has one of the codes
    `tasks.reasons.StreamCode`.
    """

    stream_id: UUID
    text: str | None = Field(default=None, max_length=MAX_SERIAL_LOG)
    kept_bytes: Whole = Field(default=0, ge=0, lt=2**53)
    """Size in bytes of the log on the node; of a removed slice, the size that its log had at the removal."""
    failure: Reason | None = None


class ConsoleOpened(Wire):
    """First message (text) of a node on the WebSocket of a console or SSH port. With a `failure`, the node did not open
    it, and closes the connection. Each further message is binary: output of the slice, or input to it.
    """

    failure: Reason | None = None


def read_request(text: bytes) -> StreamRequest:
    """Parse a request for a stream. Raises `MalformedRequest`."""
    try:
        return StreamRequest.model_validate_json(text)
    except ValidationError as error:
        raise MalformedRequest(f"the signed text is not a request for a stream: {error}") from None


def text_of(content: bytes) -> str:
    """Return the serial output of a guest as a text that JSON and the API accept: a zero byte and bytes that are not
    UTF-8 become U+FFFD.
    """
    return content.decode(errors="replace").replace("\0", "\ufffd")
