"""Explanation of a placement that was made: the reason of every node in the state of the fleet just before it.

The rows of slots and nodes with newer events are computed from the ledger; all others are still as they were. So the
cost grows with the number of slots and nodes that changed since, and not with their histories.

A past state has neither heartbeats nor abilities of agents, free public addresses, reservations and nodes kept for
waiting requests: they are not events of slots and nodes. A node that only lacked one of them counts as suitable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.explaining import Fleet, groups_in
from control_plane.commands.placement_request import NewAllocation
from control_plane.decisions.first_release import implied_specification
from control_plane.decisions.placing.explanation import Group
from control_plane.decisions.refusals import Conflict, Objection
from control_plane.time_travel.rows import Row, rows_at
from control_plane.work.label_locks import nodes_with_labels
from control_plane.work.slot_counts import counted_to, counts_with
from events.allocations import (
    AllocationDequeued,
    AllocationFact,
    AllocationPlaced,
    AllocationReplaced,
    AllocationRequested,
    AllocationSpecified,
    PlacedSlot,
)
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.values import NodeId, Position, SlotId, StreamId, node_of
from read_models import nodes, slots
from read_models.inline import NODES, SLOTS
from read_models.rows import Patched
from read_models.slots import CLASS_EXPRESSION

MOST_CHANGED: Final = 20_000
"""Number of slots and nodes that may have changed since a placement that is explained."""
_AT_A_TIME: Final = 1000
_OF_NODE: Final = (
    "node_id",
    "state",
    "key_thumbprint",
    "missing",
    "unsupported_modes",
    "blocked",
    "drift",
    "cordoned",
    "excluded",
    "images",
    "simulated",
)
_OF_SLOT: Final = (
    "slot_id",
    "node_id",
    "state",
    "skus",
    "vcpus",
    "memory_mib",
    "offer",
    "allocation_id",
    "blocked",
    "drift",
    "excluded",
)
_CHANGED: Final = """
select h.stream_id from ledger.head h
  join ledger.event e on e.stream_id = h.stream_id and e.version = h.version
 where (h.stream_id like 'slot-%%' or h.stream_id like 'node-%%') and e.position > %(position)s
 limit %(limit)s
"""


class Placement(NamedTuple):
    """The choice of an allocation's slots, all on one node. `position` is the last position of the ledger before it."""

    request: AllocationRequested
    specified: AllocationSpecified
    slots: tuple[PlacedSlot, ...]
    vacated: frozenset[NodeId]
    """The node that the allocation had before, which this placement must not choose; empty for the first placement."""
    attempt: int
    """Number of this placement of the allocation, counted from 1."""
    placed_at: datetime
    position: Position


def newest_placement(history: Sequence[Recorded[AllocationFact]]) -> Placement:
    """Return the newest placement of an allocation. `history` is its whole stream. Raises `Conflict` if the allocation
    waits for capacity, or ended while it waited.
    """
    request = history[0].fact
    assert isinstance(request, AllocationRequested)
    recorded = (each.fact for each in history if isinstance(each.fact, AllocationSpecified))
    specified = next(recorded, None) or implied_specification(request)
    for each in reversed(history):
        match each.fact:
            case AllocationReplaced(slots=chosen, vacated=vacated, attempt=attempt):
                hosts = frozenset(map(node_of, vacated))
                return Placement(request, specified, chosen, hosts, attempt, *_time_before(each, each))
            case AllocationPlaced(slots=chosen):
                dequeued = (other for other in history if isinstance(other.fact, AllocationDequeued))
                first = next(dequeued, history[0])
                return Placement(request, specified, chosen, frozenset(), 1, *_time_before(each, first))
            case _:
                continue
    message = f"allocation {request.allocation_id} was not placed, so there is no placement to explain"
    raise Conflict(Objection("wrong_state", message))


def _time_before(placed: Recorded[Fact], first: Recorded[Fact]) -> tuple[datetime, Position]:
    """Return the time of a placement, and the last position before the events that were appended with it. `first` is
    the first of these events.
    """
    return placed.cause.observed_at, Position(first.position - 1)


async def explain_placement(
    conn: AsyncConnection, placement: Placement, unreachable_after: timedelta, *, simulated_allowed: bool
) -> list[Group]:
    """Return every node that was registered before a placement and that it was permitted to choose, in groups with the
    same reason.

    `conn` must have changed nothing. The other arguments are those of `NewAllocation`; simulated nodes also count as
    allowed if the chosen node is one. Raises `Conflict` if too many slots and nodes have changed since.
    """
    ledger, position = await ledger_connection(conn), placement.position
    # All queries must see the same events and rows. The transaction may have begun without the knowledge of SQLAlchemy.
    await ledger.rollback()
    await conn.execute(sa.text("set transaction isolation level repeatable read"))
    counted: int = await conn.scalar(sa.select(counted_to())) or 0
    # Slots that changed before the placement and are not in the numbers yet are counted again too.
    changed = await _changed(ledger, Position(min(position, counted)))
    of_slots = await _rows_at(ledger, SLOTS, changed, "slot-", position)
    of_nodes = await _rows_at(ledger, NODES, changed, "node-", position)
    past_slots = _past(slots.slot, _OF_SLOT, of_slots, class_=sa.literal_column(CLASS_EXPRESSION))
    slot = _with_past(slots.slot, past_slots, of_slots)
    node = _with_past(nodes.node, _past(nodes.node, _OF_NODE, of_nodes), of_nodes)
    recounted = {node_of(SlotId(each)) for each in of_slots}
    fleet = Fleet(node, counts_with(slot, recounted), await slots.classes(conn, past_slots), is_past=True)
    request = placement.request
    chosen = await nodes.find(conn, node_of(placement.slots[0].slot_id))
    allowed = simulated_allowed or (chosen is not None and chosen.simulated is True)
    new = NewAllocation(request, unreachable_after, simulated_allowed=allowed)
    apart = await nodes_with_labels(conn, request.project, request.apart_from, slot)
    wanted = replace(new.placed_as(placement.specified, apart), except_nodes=placement.vacated)
    return await groups_in(conn, wanted, fleet)


async def _changed(ledger: psycopg.AsyncConnection[tuple[object, ...]], position: Position) -> list[StreamId]:
    """Return the streams of slots and nodes with events after a position. Raises `Conflict` if there are too many."""
    cursor = await ledger.execute(_CHANGED, {"position": position, "limit": MOST_CHANGED + 1})
    found = [StreamId(str(stream)) for (stream,) in await cursor.fetchall()]
    if len(found) > MOST_CHANGED:
        message = f"more than {MOST_CHANGED} slots and nodes have changed since this placement, so it is not explained"
        raise Conflict(Objection("placement_too_old", message))
    return found


async def _rows_at(
    ledger: psycopg.AsyncConnection[tuple[object, ...]],
    model: Patched,
    changed: Sequence[StreamId],
    prefix: str,
    position: Position,
) -> dict[str, Row | None]:
    """Return the read model rows, at a position, of the changed streams with a name that begins with `prefix`. The keys
    are the names without the prefix; a stream that began later has None.
    """
    streams = [each for each in changed if each.startswith(prefix)]
    found: dict[str, Row | None] = {each.removeprefix(prefix): None for each in streams}
    for start in range(0, len(streams), _AT_A_TIME):
        rows = await rows_at(ledger, model, streams[start : start + _AT_A_TIME], position)
        found |= {stream.removeprefix(prefix): row for stream, row in rows.items()}
    return found


def _past(
    table: sa.Table, names: Sequence[str], rows: Mapping[str, Row | None], **more: sa.ColumnElement[Any]
) -> sa.Select[tuple[Any, ...]]:
    """Return a query with the columns `names` of the past `rows`, and the columns `more`, which are computed from
    these. Rows computed from facts lack the default values of the table's columns; the query adds them.
    """
    given = [{name: row[name] for name in names} for row in rows.values() if row is not None]
    encoded = sa.cast(sa.literal(msgspec.json.encode(given).decode()), JSONB)
    columns = [sa.column(name, table.c[name].type) for name in names]
    past = (
        sa.func.jsonb_to_recordset(encoded)
        .table_valued(*columns, name="past")
        .render_derived(with_types=True)
    )
    with_defaults = [_or_default(past.c[name], table.c[name].server_default).label(name) for name in names]
    return sa.select(*with_defaults, *(each.label(name.rstrip("_")) for name, each in more.items()))


def _or_default(column: sa.ColumnElement[Any], default: object) -> sa.ColumnElement[Any]:
    return sa.func.coalesce(column, default.arg) if isinstance(default, sa.DefaultClause) else column


def _with_past(
    table: sa.Table, past: sa.Select[tuple[Any, ...]], rows: Mapping[str, Row | None]
) -> sa.Subquery:
    """Return a query of the rows of `table`, in which rows with a key in `rows` are replaced by the rows of `past`."""
    [key] = table.primary_key.columns
    present = sa.select(*(table.c[each.name] for each in past.selected_columns))
    others = present.where(key != sa.all_(sa.cast([*rows], ARRAY(sa.Text))))
    return sa.union_all(others, past).subquery()
