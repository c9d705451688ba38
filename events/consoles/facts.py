"""Facts about console sessions: access of admins to serial ports and displays, and SSH connections and terminals of
callers through the SSH gateway. Stream: `console-<console_id>`.

A session has a stream of its own, so that it neither changes the version of the allocation nor its timeline. Its events
have the project and the correlation id of the allocation.
"""

from datetime import datetime

from events.facts import Fact, Reason
from events.values import AllocationId, ConsoleId, NodeId, SlotId


class ConsoleRequested(Fact, frozen=True, omit_defaults=True):
    """A console session was requested. The caller got a ticket that is accepted once; an SSH connection needs none."""

    console_id: ConsoleId
    allocation_id: AllocationId
    slot_id: SlotId
    """Slot of the slice."""
    node_id: NodeId
    """Node that opens the console."""
    kind: str
    """What the session reaches: `serial`, the serial port of the slice, `graphics`, its display, `ssh`, its SSH port,
    or `terminal`, a shell that the SSH gateway opens in the slice."""
    actor: str
    """Caller that got the ticket; only this caller can use it. Of an SSH connection, `ssh-key:` and the fingerprint of
    the key with which the caller authenticated, or the key id of its SSH certificate, which is the caller that
    requested the certificate."""
    ticket_expires_at: datetime | None = None
    """Time from which the ticket is refused; absent: the session has no ticket."""
    origin: str | None = None
    """Origin of the web page that may use the ticket; absent: a program that sends no origin."""
    shared: bool = False
    """Whether the display may be open in other sessions at the same time."""


class ConsoleTicketRefused(Fact, frozen=True, omit_defaults=True):
    """A ticket of the session was presented and refused. No connection was made."""

    console_id: ConsoleId
    actor: str
    """Caller that presented the ticket."""
    reason: Reason
    """Why the ticket was refused."""
    origin: str | None = None
    """Origin of the web page that presented it; absent: none was sent."""


class ConsoleConnected(Fact, frozen=True):
    """The node opened the console, and the caller is connected to it. Recorded before the first byte is passed on."""

    console_id: ConsoleId
    allocation_id: AllocationId


class ConsoleFailed(Fact, frozen=True):
    """The session ended before it was connected: the node did not open the console, or an admin cut the session. No
    byte was passed on.
    """

    console_id: ConsoleId
    allocation_id: AllocationId
    reason: Reason
    """Why the session was not connected."""


class ConsoleDisconnected(Fact, frozen=True):
    """The connection of a console session has ended."""

    console_id: ConsoleId
    allocation_id: AllocationId
    reason: Reason
    """What ended the connection."""


ConsoleFact = ConsoleRequested | ConsoleTicketRefused | ConsoleConnected | ConsoleFailed | ConsoleDisconnected
