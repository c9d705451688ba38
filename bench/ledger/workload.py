"""Commands of the append benchmark: events of typical size, built before the clock starts.

Names of streams begin with "one" or contain "full", so that commands with one event and full commands can be appended
to one ledger without a conflict. The compared implementations have tables of their own.
"""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from events.allocations import SliceReady
from events.envelope import Cause
from events.ledger.append import Change, CommandKey, LedgerCommand
from events.slots import SlotClaimed
from events.values import AllocationId, Ipv4Address, ProjectId, SlotId, StreamId, new_uuid

STREAM_LENGTH: Final = 10
"""Events appended to one stream one by one; an allocation's stream has about as many."""
_ALLOCATION: Final = AllocationId("alc-01h455vb4pex5vsknk084sn02q")
_TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_ANSWER: Final = '{"id":"alc-01h455vb4pex5vsknk084sn02q","state":"placed","slots":["lab-a/0","lab-a/1"]}'


def one_event(connection: int, index: int) -> LedgerCommand:
    """Return a connection's command number `index` (from 0), which appends one event.

    Each `STREAM_LENGTH` commands in a row append to the same stream.
    """
    number, version = divmod(index, STREAM_LENGTH)
    fact = SliceReady(
        allocation_id=_ALLOCATION,
        slot_id=SlotId("lab-a/0"),
        address=Ipv4Address("10.100.1.10"),
        port=22,
        banner="SSH-2.0-dropbear_2022.83",
    )
    return LedgerCommand((Change(StreamId(f"one-{connection}-{number}"), version, (fact,)),), _cause())


def full_command(connection: int, index: int) -> LedgerCommand:
    """Return a command that claims two slots, each on its own new stream, under an idempotency key."""
    name = f"{connection}-{index}"
    slots = (SlotId(f"full-{name}/0"), SlotId(f"full-{name}/1"))
    changes = tuple(Change(StreamId(f"slot-{slot}"), 0, (SlotClaimed(slot, _ALLOCATION),)) for slot in slots)
    key = CommandKey("key:bench", "POST /v1/allocations", name, sha256(name.encode()).digest())
    return LedgerCommand(changes, _cause(), key, _ANSWER)


def _cause() -> Cause:
    return Cause(
        actor="key:bench",
        reason="POST /v1/allocations 01h455vb4pex5vsknk084sn02q",
        correlation_id=new_uuid(),
        observed_at=datetime.now(UTC),
        project=ProjectId("default"),
        trace_context=_TRACE,
    )
