"""What the append bench records: facts of ordinary size, made before the clock starts.

Streams are named after the side that writes them, so that both sides can write the same ones into one database
and nothing is appended twice.
"""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from events.allocations import SliceReady
from events.append import Change, Command, CommandKey
from events.append_many import LIMIT
from events.envelope import Cause
from events.slots import SlotClaimed
from events.values import AllocationId, Ipv4Address, ProjectId, SlotId, StreamId, new_uuid

REFUSED_OF_BATCHED: Final = 20
"""One in so many commands of a batch is refused."""
STREAM_LENGTH: Final = 10
"""Events that a stream gets one by one; an allocation's own stream has about as many in its life."""
_ALLOCATION: Final = AllocationId("alc-01h455vb4pex5vsknk084sn02q")
_TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_ANSWER: Final = '{"id":"alc-01h455vb4pex5vsknk084sn02q","state":"placed","slots":["lab-a/0","lab-a/1"]}'


def one_event(connection: int, index: int, *, on: str = "one") -> Command:
    """The `index`-th event that a connection appends: the next of a stream of its own, named after `on`."""
    number, version = divmod(index, STREAM_LENGTH)
    fact = SliceReady(
        allocation_id=_ALLOCATION,
        slot_id=SlotId("lab-a/0"),
        address=Ipv4Address("10.100.1.10"),
        port=22,
        banner="SSH-2.0-dropbear_2022.83",
    )
    return Command((Change(StreamId(f"{on}-{connection}-{number}"), version, (fact,)),), _cause())


def batch(connection: int, index: int) -> list[Command]:
    """The `index`-th batch of a connection: single events, and one in `REFUSED_OF_BATCHED` comes too late."""
    numbers = range(index * LIMIT, (index + 1) * LIMIT)
    commands = [one_event(connection, number, on="batched") for number in numbers]
    return [
        _too_late(command) if number % REFUSED_OF_BATCHED == REFUSED_OF_BATCHED - 1 else command
        for number, command in zip(numbers, commands, strict=True)
    ]


def _too_late(command: Command) -> Command:
    [change] = command.changes
    return command._replace(changes=(change._replace(expected_version=STREAM_LENGTH),))


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
