"""What the append bench records: facts of ordinary size, made before the clock starts.

Streams are named after the side that writes them, so that both sides can write the same ones into one database
and nothing is appended twice.
"""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, NamedTuple

from events.allocations import SliceReady
from events.append import Change, CommandKey
from events.envelope import Cause
from events.slots import SlotClaimed
from events.values import AllocationId, Ipv4Address, ProjectId, SlotId, StreamId, new_uuid

STREAM_LENGTH: Final = 10
"""Events that a stream gets one by one; an allocation's own stream has about as many in its life."""
_ALLOCATION: Final = AllocationId("alc-01h455vb4pex5vsknk084sn02q")
_TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_ANSWER: Final = '{"id":"alc-01h455vb4pex5vsknk084sn02q","state":"placed","slots":["lab-a/0","lab-a/1"]}'


class Command(NamedTuple):
    """The arguments of one append."""

    changes: tuple[Change, ...]
    cause: Cause
    key: CommandKey | None = None
    answer: str | None = None


def one_event(connection: int, index: int) -> Command:
    """The `index`-th event that a connection appends: the next of a stream of its own."""
    number, version = divmod(index, STREAM_LENGTH)
    fact = SliceReady(
        allocation_id=_ALLOCATION,
        slot_id=SlotId("lab-a/0"),
        address=Ipv4Address("10.100.1.10"),
        port=22,
        banner="SSH-2.0-dropbear_2022.83",
    )
    return Command((Change(StreamId(f"one-{connection}-{number}"), version, (fact,)),), _cause())


def full_command(connection: int, index: int) -> Command:
    """Two slots are claimed, each on its own new stream, under an idempotency key."""
    name = f"{connection}-{index}"
    slots = (SlotId(f"full-{name}/0"), SlotId(f"full-{name}/1"))
    changes = tuple(Change(StreamId(f"slot-{slot}"), 0, (SlotClaimed(slot, _ALLOCATION),)) for slot in slots)
    key = CommandKey("key:bench", "POST /v1/allocations", name, sha256(name.encode()).digest())
    return Command(changes, _cause(), key, _ANSWER)


def _cause() -> Cause:
    return Cause(
        actor="key:bench",
        why="POST /v1/allocations 01h455vb4pex5vsknk084sn02q",
        correlation_id=new_uuid(),
        observed_at=datetime.now(UTC),
        project=ProjectId("default"),
        trace_context=_TRACE,
    )
