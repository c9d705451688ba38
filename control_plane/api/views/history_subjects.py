"""Resources with a history ("subjects"): the state of each at a position, and the events that changed it afterwards.

An allocation, a slot and a node are changed by the facts of their own streams. An address or an ingress is changed by
facts that claim or release it, and by facts of the slot that holds it; its view names the allocation in that slot.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.views.allocation_views import AllocationView
from control_plane.api.views.past_views import allocations_then, view_of_history
from control_plane.api.views.views import NodeView, SlotView, slot_view
from control_plane.time_travel.holders import NAMED, PROJECTION, Kind, held_at
from control_plane.time_travel.rows import Row, advanced, firsts, rows_at, since, streams_up_to
from events.allocations import AllocationRequested
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.ledger.store import read_positions
from events.slots import SlotClaimed
from events.values import AllocationId, Position, StreamId, stream_of_allocation
from read_models.holdings import Holding
from read_models.inline import SLOTS
from read_models.rows import Patched
from read_models.slots import SlotRow


class Tenant(BaseModel):
    """The allocation in a slot: its request, and the actor that requested it."""

    id: str
    project: str
    sku: str
    requested_by: str
    requested_at: datetime


class Holder(BaseModel):
    """The holder of a claim: `stream`, since position `since`; if it is a slot, also the slot and its allocation."""

    kind: str
    value: str
    since: int
    stream: str
    slot: SlotView | None
    allocation: Tenant | None


class HoldersView(BaseModel):
    """The holders of a claim: several if the address occurs in several layer-2 domains or subnets, none if released."""

    holders: list[Holder]


State = AllocationView | SlotView | NodeView | HoldersView


class Step(NamedTuple):
    """An event that concerns a resource, and the state of the resource after the event."""

    event: Recorded[Fact]
    after: State


class Steps(NamedTuple):
    """Events of a history in order, and the position up to which they are complete: the next query begins there."""

    steps: list[Step]
    reached: Position


class Subject(Protocol):
    """A resource with a history. `known_to` is the read model that must have reached the queried position."""

    @property
    def known_to(self) -> str | None: ...

    async def at(self, conn: AsyncConnection, position: Position) -> State | None:
        """Return the state of the resource at a ledger position, or None if the resource did not exist yet."""
        ...

    async def steps(self, conn: AsyncConnection, after: Position, to: Position, limit: int) -> Steps:
        """Return the first `limit` events that concern the resource, after position `after` and up to position `to`,
        each with the state after it.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneAllocation:
    name: AllocationId
    known_to: str | None = None

    async def at(self, conn: AsyncConnection, position: Position) -> State | None:
        return next(iter(await allocations_then(conn, [self.name], position)), None)

    async def steps(self, conn: AsyncConnection, after: Position, to: Position, limit: int) -> Steps:
        ledger, stream = await ledger_connection(conn), stream_of_allocation(self.name)
        before = (await streams_up_to(ledger, [stream], after)).get(stream, [])
        news = await since(ledger, stream, after, to, limit)
        steps = [Step(each, view_of_history(before + news[: index + 1])) for index, each in enumerate(news)]
        return Steps(steps, _reached(news, to, limit))


@dataclass(frozen=True, slots=True)
class OneRow:
    """History of a slot or a node: its state is the read model row derived from the events of its stream."""

    model: Patched
    stream: StreamId
    view: Callable[[Row], State]
    known_to: str | None = None

    async def at(self, conn: AsyncConnection, position: Position) -> State | None:
        row = await self._row(conn, position)
        return None if row is None else self.view(row)

    async def steps(self, conn: AsyncConnection, after: Position, to: Position, limit: int) -> Steps:
        row, steps = await self._row(conn, after), list[Step]()
        news = await since(await ledger_connection(conn), self.stream, after, to, limit)
        for each in news:
            row = advanced(self.model, row, each)
            assert row is not None, "the first fact of a stream must create the row of its read model"
            steps.append(Step(each, self.view(row)))
        return Steps(steps, _reached(news, to, limit))

    async def _row(self, conn: AsyncConnection, position: Position) -> Row | None:
        rows = await rows_at(await ledger_connection(conn), self.model, [self.stream], position)
        return rows.get(self.stream)


@dataclass(frozen=True, slots=True)
class OneClaim:
    """History of a claimed resource (address, ingress, PCI function), which has at most one holder at a time."""

    kind: Kind
    name: str
    known_to: str | None = PROJECTION

    async def at(self, conn: AsyncConnection, position: Position) -> State | None:
        holdings = await NAMED[self.kind](conn, self.name, position)
        if not holdings:
            return None
        rows = await _slots(conn, holdings, position)
        return _holders(holdings, position, rows, await _tenants(conn, _claimants(rows, holdings)))

    async def steps(self, conn: AsyncConnection, after: Position, to: Position, limit: int) -> Steps:
        holdings = await NAMED[self.kind](conn, self.name, to)
        rows = await _slots(conn, holdings, after)
        events = await _concerning(conn, holdings, after, to, limit)
        claimed = {each.fact.allocation_id for each in events if isinstance(each.fact, SlotClaimed)}
        tenants = await _tenants(conn, _claimants(rows, holdings) | claimed)
        previous, steps = _holders(holdings, after, rows, tenants), list[Step]()
        for each in events:
            if (row := advanced(SLOTS, rows.get(each.stream), each)) is not None:
                rows[each.stream] = row
            current = _holders(holdings, each.position, rows, tenants)
            if current != previous:
                steps.append(Step(each, current))
            previous = current
        return Steps(steps, _reached(events, to, limit))


def _reached(events: Sequence[Recorded[Fact]], to: Position, limit: int) -> Position:
    return to if len(events) < limit else events[-1].position


def _holders(
    holdings: Iterable[Holding],
    position: Position,
    rows: dict[StreamId, Row],
    tenants: dict[AllocationId, Tenant],
) -> HoldersView:
    holders = []
    for held in held_at(holdings, position):
        assert held.stream is not None, "a claim that is not released must have a holder"
        slot = SlotRow(rows[held.stream]) if held.stream in rows else None
        tenant = slot.allocation_id if slot else _allocation_of(held.stream)
        holders.append(
            Holder(
                kind=held.claim.kind,
                value=held.claim.value,
                since=held.position,
                stream=held.stream,
                slot=slot_view(slot) if slot else None,
                allocation=tenants.get(tenant) if tenant else None,
            )
        )
    return HoldersView(holders=holders)


def _allocation_of(stream: StreamId) -> AllocationId | None:
    kind, _, name = stream.partition("-")
    return AllocationId(name) if kind == "allocation" else None


def _slot_streams(holdings: Iterable[Holding]) -> list[StreamId]:
    return sorted({held.stream for held in holdings if held.stream and held.stream.startswith("slot-")})


def _claimants(rows: dict[StreamId, Row], holdings: Iterable[Holding]) -> set[AllocationId]:
    direct = {_allocation_of(held.stream) for held in holdings if held.stream}
    return {each for each in direct | {row["allocation_id"] for row in rows.values()} if each}


async def _slots(
    conn: AsyncConnection, holdings: Sequence[Holding], position: Position
) -> dict[StreamId, Row]:
    return await rows_at(await ledger_connection(conn), SLOTS, _slot_streams(holdings), position)


async def _concerning(
    conn: AsyncConnection, holdings: Sequence[Holding], after: Position, to: Position, limit: int
) -> list[Recorded[Fact]]:
    """Return the events of these claims, and those of the slots that ever held one of them, in ledger order."""
    ledger = await ledger_connection(conn)
    news = [
        each for stream in _slot_streams(holdings) for each in await since(ledger, stream, after, to, limit)
    ]
    news += await read_positions(
        ledger, [held.position for held in holdings if held.position > after][:limit]
    )
    return sorted({each.position: each for each in news}.values(), key=lambda each: each.position)[:limit]


async def _tenants(conn: AsyncConnection, names: Iterable[AllocationId]) -> dict[AllocationId, Tenant]:
    requests = await firsts(await ledger_connection(conn), list(map(stream_of_allocation, names)))
    return {
        fact.allocation_id: Tenant(
            id=fact.allocation_id,
            project=fact.project,
            sku=fact.sku,
            requested_by=each.cause.actor,
            requested_at=each.cause.observed_at,
        )
        for each in requests
        if isinstance(fact := each.fact, AllocationRequested)
    }
