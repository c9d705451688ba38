"""`read.slot_status` and `read.capacity`: the slots of each SKU by status over time. The projector writes both tables.

`read.slot_status` has a row for each change of a slot's status, SKUs or place. `read.capacity` has the numbers of the
slots of a SKU after each event that changes them, so that the numbers at any position are those of one row. Rows of
both are only inserted. A slot that is offered under several SKUs is counted for each of them.

These are not the numbers of possible allocations, which also depend on nodes: see `control_plane.commands.capacity`.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from events.envelope import Recorded
from events.ledger.tables import metadata
from events.slots import SlotFact
from events.values import NodeId, Position, SkuName, SlotId, node_of
from read_models import slots
from read_models.rows import Span, copy_rows

PROJECTION: Final = "capacity"
Status = Literal["free", "claimed", "quarantined", "blocked"]
STATUSES: Final[tuple[Status, ...]] = ("free", "claimed", "quarantined", "blocked")
"""`free`: placement can use the slot, if it can use the node. `claimed`: an allocation holds it, or it is being
emptied. `quarantined`: its node still finds remains. `blocked`: no allocation holds it, and drift or an exclusion
prevents its use.
"""

slot_status = sa.Table(
    "slot_status",
    metadata,
    sa.Column("slot_id", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("node_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("blocked", sa.Boolean, nullable=False),
    sa.Column("excluded", sa.Boolean, nullable=False),
    sa.Column("skus", ARRAY(sa.Text), nullable=False),
    sa.Column("status", sa.Text),
    sa.Index("slot_status_by_position", "position"),
    sa.Index("slot_status_of_node", "node_id", "slot_id", "position"),
    schema="read",
)
capacity = sa.Table(
    "capacity",
    metadata,
    sa.Column("sku", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    *(sa.Column(each, sa.Integer, nullable=False) for each in STATUSES),
    schema="read",
)


class SlotStatus(NamedTuple):
    """State, blocking drift, exclusion and SKUs of a slot, which determine its status and where it is counted. `status`
    is None for a slot that is retired or not approved yet.
    """

    state: str
    blocked: bool
    excluded: bool
    skus: tuple[str, ...]

    @property
    def status(self) -> Status | None:
        match self.state:
            case "free":
                return "blocked" if self.blocked or self.excluded else "free"
            case "claimed" | "releasing":
                return "claimed"
            case "quarantined":
                return "quarantined"
            case _:
                return None

    def after(self, fact: SlotFact) -> "SlotStatus":
        """Return the status after a fact of the slot, of which only the columns of the table of slots count."""
        patch = slots.patch(0, fact)
        # A slot that is discovered again, with other hardware, keeps its state.
        columns = {**((patch.born or {}) if self is UNKNOWN else {}), **patch.columns}
        return SlotStatus(
            str(columns.get("state", self.state)),
            bool(columns.get("blocked", self.blocked)),
            columns["excluded"] is not None if "excluded" in columns else self.excluded,
            msgspec.convert(columns["skus"] or (), tuple[str, ...]) if "skus" in columns else self.skus,
        )


UNKNOWN: Final = SlotStatus("discovered", blocked=False, excluded=False, skus=())
"""Status of a slot before its first event."""


class StatusRows:
    """Collects the events of slots, and writes a row of `read.slot_status` for each event that changes the `SlotStatus`
    of its slot.
    """

    def __init__(self) -> None:
        self._events: list[Recorded[SlotFact]] = []

    def add(self, recorded: Recorded[Any]) -> None:
        self._events.append(recorded)

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        """Write the rows of the collected events, which are in the range `span`."""
        events, self._events = self._events, []
        known = await _last(conn, {each.fact.slot_id for each in events})
        rows = list[tuple[object, ...]]()
        for each in events:
            slot = each.fact.slot_id
            before = known.get(slot)
            known[slot] = now = (before or UNKNOWN).after(each.fact)
            if now != before:
                decides = (now.state, now.blocked, now.excluded, [*now.skus], now.status)
                rows.append((slot, each.position, node_of(slot), *decides))
        if rows:
            await copy_rows(conn, slot_status, rows)


_ROW: Final = slot_status.c
_LAST: Final = (
    sa.select(_ROW.slot_id, _ROW.state, _ROW.blocked, _ROW.excluded, _ROW.skus)
    .ext(distinct_on(_ROW.slot_id))
    .where(_ROW.slot_id == sa.any_(sa.bindparam("names", type_=ARRAY(sa.Text))))
    .order_by(_ROW.slot_id, _ROW.position.desc())
)


async def _last(conn: AsyncConnection, names: set[SlotId]) -> dict[SlotId, SlotStatus]:
    if not names:
        return {}
    return {
        SlotId(each.slot_id): SlotStatus(each.state, each.blocked, each.excluded, tuple(each.skus))
        for each in await conn.execute(_LAST, {"names": [*names]})
    }


class CapacityRows:
    """Writes the numbers of slots that follow from the rows of `read.slot_status`, which are written before."""

    def add(self, recorded: Recorded[Any]) -> None:
        raise AssertionError("table capacity is filled from table slot_status, and must not receive facts")

    async def write(self, conn: AsyncConnection, span: Span) -> None:
        """Write the rows of the range `span`."""
        await conn.execute(_INSERT, {"after": span.after, "upto": span.upto})


def _numbers() -> sa.Select[Any]:
    """Return the query for the numbers of each SKU after each event of a range that changes them: those of the last row
    before the range, and the sum of the changes since. The range has the parameters `after` and `upto`.
    """
    now, earlier = slot_status.alias("now"), slot_status.alias("earlier")
    previous = (
        sa.select(earlier.c.skus, earlier.c.status)
        .where(earlier.c.slot_id == now.c.slot_id, earlier.c.position < now.c.position)
        .order_by(earlier.c.position.desc())
        .limit(1)
        .lateral("previous")
    )
    within = (now.c.position > sa.bindparam("after"), now.c.position <= sa.bindparam("upto"))
    gained = sa.select(
        now.c.position, sa.func.unnest(now.c.skus).label("sku"), now.c.status, sa.literal(1).label("number")
    ).where(*within)
    lost = (
        sa.select(
            now.c.position,
            sa.func.unnest(previous.c.skus).label("sku"),
            previous.c.status,
            sa.literal(-1).label("number"),
        )
        .select_from(sa.join(now, previous, sa.true()))
        .where(*within)
    )
    change = sa.union_all(gained, lost).subquery("change")
    sums = {
        each: sa.func.coalesce(sa.func.sum(change.c.number).filter(change.c.status == each), 0)
        for each in STATUSES
    }
    event = (
        sa.select(change.c.sku, change.c.position, *(total.label(each) for each, total in sums.items()))
        .group_by(change.c.sku, change.c.position)
        .having(sa.or_(*(total != 0 for total in sums.values())))
        .subquery("event")
    )
    base = (
        sa.select(*(capacity.c[each] for each in STATUSES))
        .where(capacity.c.sku == event.c.sku)
        .order_by(capacity.c.position.desc())
        .limit(1)
        .lateral("base")
    )
    sums_so_far = (
        sa.func.sum(event.c[each]).over(partition_by=event.c.sku, order_by=event.c.position)
        for each in STATUSES
    )
    return sa.select(
        event.c.sku,
        event.c.position,
        *(
            sa.func.coalesce(base.c[each], 0) + total
            for each, total in zip(STATUSES, sums_so_far, strict=True)
        ),
    ).select_from(sa.outerjoin(event, base, sa.true()))


_INSERT: Final = sa.insert(capacity).from_select(["sku", "position", *STATUSES], _numbers())


class Numbers(NamedTuple):
    """Numbers of slots by status."""

    free: int = 0
    claimed: int = 0
    quarantined: int = 0
    blocked: int = 0


def _skus() -> sa.CTE:
    """Return a query for the names of all SKUs in the table, and a null at the end. It reads one row for each SKU,
    whereas `distinct` would read all rows, one for each change.
    """
    first = sa.select(sa.func.min(capacity.c.sku).label("sku")).cte("skus", recursive=True)
    others = capacity.alias("others")
    following = sa.select(sa.func.min(others.c.sku)).where(others.c.sku > first.c.sku).scalar_subquery()
    return first.union_all(sa.select(following).where(first.c.sku.is_not(None)))


def _last_of(skus: sa.CTE, upto: sa.ColumnElement[int] | None) -> sa.FromClause:
    """Return a query for the numbers of slots of a SKU in `skus`, at the position `upto`; None: the newest numbers."""
    row = capacity.c
    query = sa.select(*(row[each] for each in STATUSES)).where(row.sku == skus.c.sku)
    if upto is not None:
        query = query.where(row.position <= upto)
    return query.order_by(row.position.desc()).limit(1).lateral("last")


async def by_sku(conn: AsyncConnection, upto: Position | None = None) -> dict[SkuName, Numbers]:
    """Return the numbers of slots of each SKU that ever had a slot, at a position; None: at the newest."""
    skus = _skus()
    last = _last_of(skus, None if upto is None else sa.literal(upto, sa.BigInteger))
    query = sa.select(skus.c.sku, *(last.c[each] for each in STATUSES))
    found = await conn.execute(query.select_from(sa.join(skus, last, sa.true())).order_by(skus.c.sku))
    return {SkuName(each.sku): Numbers(*(getattr(each, name) for name in STATUSES)) for each in found}


async def by_sku_over_time(
    conn: AsyncConnection, positions: Sequence[Position]
) -> list[dict[SkuName, Numbers]]:
    """Return the numbers of slots of each SKU at each of these positions, in their order. A SKU that had no slot yet is
    missing.
    """
    wanted = (
        sa.func.unnest(sa.cast([*positions], ARRAY(sa.BigInteger)))
        .table_valued("position", with_ordinality="number", name="wanted")
        .render_derived()
    )
    skus = _skus()
    last = _last_of(skus, wanted.c.position)
    query = sa.select(wanted.c.number, skus.c.sku, *(last.c[each] for each in STATUSES)).select_from(
        sa.join(sa.join(wanted, skus, sa.true()), last, sa.true())
    )
    found: list[dict[SkuName, Numbers]] = [{} for _ in positions]
    for each in await conn.execute(query.order_by(wanted.c.number, skus.c.sku)):
        numbers = Numbers(*(getattr(each, name) for name in STATUSES))
        found[each.number - 1][SkuName(each.sku)] = numbers
    return found


async def by_node(
    conn: AsyncConnection, names: Sequence[NodeId], upto: Position | None = None
) -> dict[NodeId, dict[SkuName, Numbers]]:
    """Return the numbers of slots of each SKU on these nodes, at a position; None: at the newest."""
    row = slot_status.c
    last = (
        sa.select(row.node_id, row.skus, row.status)
        .ext(distinct_on(row.node_id, row.slot_id))
        .where(row.node_id == sa.any_(sa.cast([*names], ARRAY(sa.Text))))
        .order_by(row.node_id, row.slot_id, row.position.desc())
    )
    if upto is not None:
        last = last.where(row.position <= upto)
    then = last.subquery("then")
    offered = sa.select(then.c.node_id, then.c.status, sa.func.unnest(then.c.skus).label("sku")).subquery(
        "offered"
    )
    query = (
        sa.select(
            offered.c.node_id,
            offered.c.sku,
            *(sa.func.count().filter(offered.c.status == each).label(each) for each in STATUSES),
        )
        .where(offered.c.status.is_not(None))
        .group_by(offered.c.node_id, offered.c.sku)
        .order_by(offered.c.node_id, offered.c.sku)
    )
    found: dict[NodeId, dict[SkuName, Numbers]] = {}
    for each in await conn.execute(query):
        numbers = Numbers(*(getattr(each, name) for name in STATUSES))
        found.setdefault(NodeId(each.node_id), {})[SkuName(each.sku)] = numbers
    return found
