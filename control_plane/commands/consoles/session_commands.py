"""Commands about console sessions: request a ticket, use it, begin an SSH connection, and record how the session goes
on.

Each command appends its events and changes the row of the session in one transaction. If the events cannot be appended,
there is no ticket and no connection.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Any, Final
from uuid import UUID

import msgspec

from control_plane.commands.loaded import LoadedAllocation, check_supported, load
from control_plane.decisions.allocation import against_opening_terminal, against_ssh
from control_plane.decisions.refusals import Conflict, Forbidden, Malformed, Objection, UnknownName, refuse_if
from control_plane.handle import AGAIN, Command, Decision, Transaction
from control_plane.origin import Origin
from control_plane.work import consoles
from control_plane.work.consoles import ConsoleKind, ConsoleRow, TicketKind
from events.consoles.facts import (
    ConsoleConnected,
    ConsoleDisconnected,
    ConsoleFact,
    ConsoleFailed,
    ConsoleRequested,
    ConsoleTicketRefused,
)
from events.facts import Reason
from events.ledger.append import Change
from events.ledger.connection import ledger_connection
from events.ledger.store import read_first
from events.slot_states import Claimed
from events.values import (
    AllocationId,
    ConsoleId,
    SlotId,
    StreamId,
    console_of,
    new_uuid,
    node_of,
    stream_of_console,
)
from tasks.streams import CONSOLES, GRAPHICS, SSH

TICKET_SECONDS: Final = 30
MOST_SSH: Final = 8
"""Maximum number of SSH connections through the SSH gateway to all slices of an allocation, including terminals
with an unused ticket that has not expired."""
_REFUSED: Final = "refused "
_API_ENDED: Final = Reason("api_process_ended", "the process of the API that had the connection has ended")
_GATEWAY_ENDED: Final = Reason(
    "gateway_process_ended", "the process of the SSH gateway that had the connection has ended"
)
TICKET_REASONS: Final = {
    "ticket_used": "the ticket was used before; request another console session",
    "ticket_expired": "the ticket has expired; request another console session",
    "ticket_of_other_caller": "the ticket belongs to another caller; request a console session yourself",
    "ticket_of_other_origin": "the ticket belongs to another origin than the one of this request",
    "ticket_wrong": "the ticket is not the one of this console session",
    "slice_not_on_node": "the slice is being removed",
    "credential_ended": "the credential of the caller has ended or was changed; log in again",
}
"""Message of the refusal of a ticket, by its code."""


class AcceptedTicket(msgspec.Struct, frozen=True):
    """The session of an accepted ticket: the stream that the node has to open, and the caller that got the ticket."""

    stream_id: UUID
    kind: ConsoleKind
    allocation_id: AllocationId
    actor: str


def request_console(
    allocation: AllocationId,
    number: int,
    ticket_sha256: str,
    origin: Origin,
    *,
    page_origin: str | None,
    render: Callable[[ConsoleRequested], str],
    kind: TicketKind = "serial",
    shared: bool = False,
) -> Command:
    """Request a session on the serial port or the display of slot `number` of an allocation; `render` builds the JSON
    answer. Only a display can be `shared` with other sessions.

    Raises `UnknownName`, `Malformed` and `Conflict`.
    """

    async def command(transaction: Transaction) -> Decision:
        if shared and kind != "graphics":
            message = "only a display can be shared: a serial port has one reader; omit `shared`, or request graphics"
            raise Malformed(Objection("console_not_shareable", message, "/shared"))
        loaded = await load(transaction.conn, allocation)
        slot = _slot_of(loaded, number)
        node = node_of(slot)
        await check_supported(transaction.conn, [node], GRAPHICS if kind == "graphics" else CONSOLES)
        fact = ConsoleRequested(
            console_id=console_of(new_uuid()),
            allocation_id=allocation,
            slot_id=slot,
            node_id=node,
            kind=kind,
            actor=origin.actor,
            ticket_expires_at=transaction.now + timedelta(seconds=TICKET_SECONDS),
            origin=page_origin,
            shared=shared,
        )
        own = {"ticket_sha256": ticket_sha256, "state": "requested", "stream_id": new_uuid()}
        await _insert(transaction, fact, own)
        return _requested(transaction, loaded, fact, origin, render(fact))

    return command


def begin_ssh(allocation: AllocationId, number: int, origin: Origin) -> Command:
    """Begin an SSH connection to slot `number` of an active allocation, and answer with the id of the session and that
    of the stream that the node has to open, with a space in between.

    Raises `UnknownName`, `Malformed` and `Conflict`, also if the allocation has `MOST_SSH` connections.
    """

    async def command(transaction: Transaction) -> Decision:
        loaded, slot = await _reachable_by_ssh(transaction, allocation, number)
        fact = ConsoleRequested(
            console_id=console_of(new_uuid()),
            allocation_id=allocation,
            slot_id=slot,
            node_id=node_of(slot),
            kind="ssh",
            actor=origin.actor,
        )
        stream = new_uuid()
        own = {"ticket_sha256": None, "state": "connecting", "stream_id": stream}
        await _insert(transaction, fact, own)
        return _requested(transaction, loaded, fact, origin, f"{fact.console_id} {stream}")

    return command


def request_terminal(
    allocation: AllocationId,
    number: int,
    ticket_sha256: str,
    origin: Origin,
    *,
    page_origin: str,
    credential: Sequence[StreamId],
    expires_at: datetime | None,
    render: Callable[[ConsoleRequested], str],
) -> Command:
    """Request a terminal in slot `number` of an active allocation that permits the SSH gateway to log in; `render`
    builds the JSON answer. The session ends with the first new event of the streams `credential`, and at `expires_at`.

    Raises `UnknownName`, `Malformed` and `Conflict`.
    """

    async def command(transaction: Transaction) -> Decision:
        loaded, slot = await _reachable_by_ssh(transaction, allocation, number)
        # After the check of the state, so that both commands refuse an allocation that is not active for one reason.
        refuse_if(against_opening_terminal(loaded.state))
        fact = ConsoleRequested(
            console_id=console_of(new_uuid()),
            allocation_id=allocation,
            slot_id=slot,
            node_id=node_of(slot),
            kind="terminal",
            actor=origin.actor,
            ticket_expires_at=transaction.now + timedelta(seconds=TICKET_SECONDS),
            origin=page_origin,
        )
        own = {"ticket_sha256": ticket_sha256, "state": "requested", "stream_id": new_uuid()}
        await _insert(transaction, fact, own)
        await consoles.bind_to_credential(transaction.conn, fact.console_id, credential, expires_at)
        return _requested(transaction, loaded, fact, origin, render(fact))

    return command


async def _reachable_by_ssh(
    transaction: Transaction, allocation: AllocationId, number: int
) -> tuple[LoadedAllocation, SlotId]:
    """Return an active allocation and its slot with this number, to which one more SSH connection can be opened."""
    # This locks the rows of the slots, so that connections of an allocation are counted one after the other.
    loaded = await load(transaction.conn, allocation)
    refuse_if(against_ssh(loaded.state))
    slot = _slot_of(loaded, number)
    await check_supported(transaction.conn, [node_of(slot)], SSH)
    if await consoles.count_ssh(transaction.conn, allocation, transaction.now) >= MOST_SSH:
        message = (
            f"the allocation has {MOST_SSH} open or requested SSH connections, which is the maximum; close one, or wait"
            f" {TICKET_SECONDS} s until unused tickets have expired"
        )
        raise Conflict(Objection("too_many_ssh_connections", message))
    return loaded, slot


async def _insert(transaction: Transaction, fact: ConsoleRequested, own: dict[str, Any]) -> None:
    row = {
        "console_id": fact.console_id,
        "version": 1,
        "allocation_id": fact.allocation_id,
        "slot_id": fact.slot_id,
        "node_id": fact.node_id,
        "kind": fact.kind,
        "shared": fact.shared,
        "actor": fact.actor,
        "origin": fact.origin,
        "ticket_expires_at": fact.ticket_expires_at,
        "seen_at": transaction.now,
    }
    await consoles.insert(transaction.conn, row | own)


def _requested(
    transaction: Transaction, loaded: LoadedAllocation, fact: ConsoleRequested, origin: Origin, answer: str
) -> Decision:
    change = Change(stream_of_console(fact.console_id), 0, (fact,))
    return Decision((change,), origin.within(loaded.history[0].cause).at(transaction.now), answer)


def _slot_of(loaded: LoadedAllocation, number: int) -> SlotId:
    slots, request = loaded.state.slots, loaded.state.request
    if number >= len(slots):
        message = f"the allocation has no slot {number}; it has {len(slots)} slots, counted from 0"
        raise Malformed(Objection("unknown_slot_index", message, "/slot"))
    slot = slots[number].slot_id
    state = loaded.rows[slot].state
    if not (isinstance(state, Claimed) and state.by == request.allocation_id):
        raise Conflict(Objection("slice_not_on_node", f"the slice in {slot} is being removed, or is removed"))
    return slot


def use_ticket(console_id: ConsoleId, ticket_sha256: str, page_origin: str | None, origin: Origin) -> Command:
    """Use the ticket of a session on a serial port or a display; `accepted` reads the answer.

    A refused ticket is recorded; it is part of the answer, because a refusal would roll the event back. Raises
    `UnknownName` if there is no such session.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction, console_id)
        is_of_other = row.actor != origin.actor or row.kind in consoles.OF_GATEWAY
        code = "ticket_of_other_caller" if is_of_other else None
        code = await _against(transaction, row, ticket_sha256, page_origin, code)
        return await _used(transaction, row, page_origin, origin, code)

    return command


def use_terminal_ticket(
    console_id: ConsoleId, ticket_sha256: str, page_origin: str | None, origin: Origin
) -> Command:
    """Use the ticket of a terminal, which a page of `page_origin` sent to the SSH gateway; `accepted` reads the answer.
    The ticket alone proves which caller it is.

    A refused ticket is recorded, as by `use_ticket`. Raises `UnknownName`.
    """

    async def command(transaction: Transaction) -> Decision:
        row, code = await _locked(transaction, console_id), None
        if row.kind != "terminal":
            code = "ticket_of_other_caller"
        elif (await consoles.check(transaction.conn, console_id)).code == "credential_ended":
            code = "credential_ended"
        code = await _against(transaction, row, ticket_sha256, page_origin, code)
        return await _used(transaction, row, page_origin, origin, code)

    return command


async def _against(
    transaction: Transaction,
    row: ConsoleRow,
    ticket_sha256: str,
    page_origin: str | None,
    of_caller: str | None,
) -> str | None:
    """Return the code with which a ticket is refused; None if it is accepted. `of_caller` is the code for a caller that
    may not use the ticket; None if the caller may.
    """
    if row.ticket_sha256 is None or row.ticket_expires_at is None:
        return "ticket_wrong"
    if not compare_digest(row.ticket_sha256, ticket_sha256):
        return "ticket_wrong"
    if of_caller is not None:
        return of_caller
    if row.origin != page_origin:
        return "ticket_of_other_origin"
    if row.state != "requested":
        return "ticket_used"
    if transaction.now >= row.ticket_expires_at:
        return "ticket_expired"
    released = await consoles.is_released(transaction.conn, row.slot_id, row.allocation_id)
    return "slice_not_on_node" if released else None


async def _used(
    transaction: Transaction, row: ConsoleRow, page_origin: str | None, origin: Origin, code: str | None
) -> Decision:
    """Use a ticket, or record that it is refused with `code`."""
    if code is None:
        await consoles.change(transaction.conn, row.console_id, state="connecting", seen_at=transaction.now)
        use = AcceptedTicket(row.stream_id, row.kind, row.allocation_id, row.actor)
        return Decision((), origin.at(transaction.now), msgspec.json.encode(use).decode())
    reason = Reason(code, TICKET_REASONS[code])
    fact = ConsoleTicketRefused(row.console_id, origin.actor, reason, page_origin)
    return await _appended(transaction, row, fact, origin, f"{_REFUSED}{code}")


def accepted(answer: str) -> AcceptedTicket:
    """Return the session of an accepted ticket, from the answer of `use_ticket` or `use_terminal_ticket`. Raises
    `Forbidden` if the ticket was refused.
    """
    if answer.startswith(_REFUSED):
        code = answer.removeprefix(_REFUSED)
        raise Forbidden(Objection(code, TICKET_REASONS[code]))
    return msgspec.json.decode(answer, type=AcceptedTicket)


def record_connected(console_id: ConsoleId, origin: Origin) -> Command:
    """Record that the node has opened the console. Raises `UnknownName` if the session has ended."""

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction, console_id)
        await consoles.change(transaction.conn, console_id, state="connected", seen_at=transaction.now)
        return await _appended(transaction, row, ConsoleConnected(console_id, row.allocation_id), origin, "")

    return command


def record_end(console_id: ConsoleId, reason: Reason, origin: Origin) -> Command:
    """Record the end of a session: that the node did not open the console, or that a connection has ended. Recording it
    again changes nothing.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await consoles.locked(transaction.conn, console_id)
        if row is None:
            return Decision((), origin.at(transaction.now))
        return await _ended(transaction, row, reason, origin)

    return command


def record_lost(origin: Origin) -> Command:
    """Record the end of one console session of a process (API or SSH gateway) that has ended; answer `AGAIN` if there
    may be more such sessions.
    """

    async def command(transaction: Transaction) -> Decision:
        rows = await consoles.lost_sessions(transaction.conn)
        if not rows:
            await consoles.forget_unused(transaction.conn)
            return Decision((), origin.at(transaction.now))
        reason = _GATEWAY_ENDED if rows[0].kind in consoles.OF_GATEWAY else _API_ENDED
        return await _ended(transaction, rows[0], reason, origin, AGAIN)

    return command


def cut_console(console_id: ConsoleId, reason: str, origin: Origin) -> Command:
    """Request the end of a session. Its process ends the connection within a second. Raises `UnknownName`."""

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction, console_id)
        if row.state == "requested":
            cut = Reason("cut", f"cut by {origin.actor} before its ticket was used: {reason}")
            return await _ended(transaction, row, cut, origin)
        text = f"{origin.actor}: {reason}"
        await consoles.change(transaction.conn, console_id, cut_reason=text)
        return Decision((), origin.at(transaction.now))

    return command


async def _locked(transaction: Transaction, console_id: str) -> ConsoleRow:
    row = await consoles.locked(transaction.conn, console_id)
    if row is None:
        reason = f"there is no console session {console_id}, or it has ended"
        raise UnknownName(Objection("unknown_console", reason))
    return row


async def _ended(
    transaction: Transaction, row: ConsoleRow, reason: Reason, origin: Origin, answer: str = ""
) -> Decision:
    was_open = row.state == "connected"
    kind = ConsoleDisconnected if was_open else ConsoleFailed
    decision = await _appended(
        transaction, row, kind(row.console_id, row.allocation_id, reason), origin, answer
    )
    await consoles.delete(transaction.conn, row.console_id)
    return decision


async def _appended(
    transaction: Transaction, row: ConsoleRow, fact: ConsoleFact, origin: Origin, answer: str
) -> Decision:
    await consoles.change(transaction.conn, row.console_id, version=row.version + 1)
    stream = stream_of_console(row.console_id)
    # All events of a session have the project and the correlation id of its allocation, as its first one has.
    requested = await read_first(await ledger_connection(transaction.conn), stream)
    change = Change(stream, row.version, (fact,))
    return Decision((change,), origin.within(requested.cause).at(transaction.now), answer)
