"""Random ledgers of leases, and the rows that the projector makes of them."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.projector.gathering import Gathering
from deploy.embedded.lab_catalogue import SMALL
from events.allocations import LeaseEnded, LeaseGranted, LeaseRenewed
from events.envelope import Cause, Recorded
from events.facts import Fact
from events.values import (
    AllocationId,
    Epoch,
    Position,
    ProjectId,
    SkuName,
    allocation_of,
    stream_of_allocation,
)
from read_models.projections import PROJECTIONS
from read_models.rows import Span
from read_models.usage.tables import PROJECTION
from tests.decisions.histories import REQUESTED, specified

START = datetime(2026, 3, 1, tzinfo=UTC)
CAUSE = Cause("key:test", "test", UUID(int=1), START)
NAMES = [allocation_of(UUID(int=number)) for number in range(1, 5)]
moments = st.builds(
    lambda minutes, micros: START + timedelta(minutes=minutes, microseconds=micros),
    st.integers(0, 30),
    st.sampled_from([0, 1, 333_333]),
)
prices = st.sampled_from(["0", "0.01", "3.20", "7", "0.000001"])
Change = tuple[Fact, datetime]


@st.composite
def changes(draw: st.DrawFn, name: AllocationId) -> list[Change]:
    """Draw the facts of one allocation in their order, each with the time at which it is recorded."""
    labels = draw(st.sampled_from([{}, {"team": "a"}, {"team": "b", "job": "1"}]))
    project, sku = draw(st.sampled_from(["red", "blue"])), draw(st.sampled_from(["s", "m"]))
    content = msgspec.structs.replace(SMALL, price_per_hour=draw(prices))
    replace = msgspec.structs.replace
    requested = replace(
        REQUESTED,
        allocation_id=name,
        project=ProjectId(project),
        sku=SkuName(sku),
        slot_count=draw(st.integers(1, 8)),
        labels=labels,
    )
    found: list[Fact] = [requested, replace(specified(content), allocation_id=name)]
    start, *ends = draw(st.lists(moments, min_size=2, max_size=4))
    if draw(st.sampled_from([True, True, True, False])):
        found.append(LeaseGranted(name, start, ends[0]))
        found += [LeaseRenewed(name, end) for end in ends[1:]]
        if draw(st.booleans()):
            found.append(LeaseEnded(name))
    return [(fact, draw(moments)) for fact in found]


@st.composite
def histories(draw: st.DrawFn) -> list[Recorded[Fact]]:
    """Generate a ledger of interleaved facts of several allocations; those of each allocation keep their order."""
    streams = [draw(changes(name)) for name in NAMES]
    order = draw(st.permutations([index for index, each in enumerate(streams) for _ in each]))
    events = list[Recorded[Fact]]()
    taken = [0] * len(streams)
    for position, index in enumerate(order, 1):
        fact, recorded_at = streams[index][taken[index]]
        taken[index] += 1
        events.append(
            Recorded(
                Position(position), UUID(int=position), stream_of_allocation(NAMES[index]), taken[index],
                fact, CAUSE, recorded_at, Epoch(1),
            )
        )  # fmt: skip
    return events


async def project(conn: AsyncConnection, events: list[Recorded[Fact]]) -> None:
    """Write the rows of these events as a rebuild does."""
    names = (PROJECTION, "billing")
    gathering = Gathering([PROJECTIONS[each] for each in names], {each: frozenset() for each in names})
    gathering.add(events)
    await gathering.write(conn, Span(Position(0), events[-1].position))
