"""The budget that all reports of a node share, in `work.report_budget`, one row per node.

The ledger keeps every event, so the number of events that one node may add is bounded. A budget holds `burst` tokens
and regains them at a fixed rate. A report costs one token, and one more for each fact beyond the first; the end of a
task returns tokens, because the control plane requested the task. So reports about requested work cost nothing in
total, and each invented report costs tokens.

When a tenth of the budget is spent, host descriptions are merged: the newest one is stored in the row, and recorded
once the budget allows it, or after `HELD_AT_MOST`. When all of it is spent, reports are refused until tokens are back,
and stay in the node's spool in their order. Neither measure loses the newest description. Session renewals take from
the same budget and may overdraw it by `SESSIONS`, so that a throttled node keeps its session.

The row is shared by all processes of the API. It is locked before anything else, so the reports of one node are
processed one after another, and a refused report costs a single statement. An episode of throttling begins when the
budget is first exceeded. Its begin and its end are recorded as one fact each; in between, the row only counts refused
requests and merged descriptions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.refusals import Objection, Throttled
from control_plane.work import tables
from events.ledger.append import Change
from events.values import NodeId

row = tables.report_budget
CREDIT: Final = 32
"""Number of tokens that the end of a task returns: more than all reports of the task cost."""
SESSIONS: Final = 100
"""Number of tokens by which renewals of a node's session may overdraw the budget."""
HELD_AT_MOST: Final = timedelta(seconds=10)
"""Time after which a held description is recorded although more than a tenth of the budget is spent."""
QUIET: Final = timedelta(seconds=60)
"""Time for which a node must stay within its budget before its episode of throttling ends."""
_STATE_SHARE: Final = 10
_WAIT_TOKENS: Final = 10
_LONGEST_WAIT: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a report budget: the number of tokens that it holds, and the number that it regains per minute."""

    burst: int = 1000
    per_minute: int = 60

    @property
    def token(self) -> timedelta:
        """The time in which a report budget regains one token."""
        return timedelta(minutes=1) / self.per_minute

    @property
    def full(self) -> timedelta:
        """The time in which a spent report budget regains all tokens."""
        return self.burst * self.token

    @property
    def state(self) -> timedelta:
        """Limit for host descriptions: while the budget needs longer than this to regain its spent tokens, host
        descriptions are stored and recorded later.
        """
        return self.full / _STATE_SHARE

    @property
    def wait(self) -> timedelta:
        """Time that a refused node waits before it retries, so that several reports are accepted afterwards."""
        return min(_LONGEST_WAIT, max(timedelta(seconds=1), min(_WAIT_TOKENS, self.burst) * self.token))


class Budget(NamedTuple):
    """State of a node's report budget after one token was taken from it."""

    spent_until: datetime
    throttled_at: datetime | None
    held_at: datetime | None


async def take(conn: AsyncConnection, node: NodeId, limits: Limits, now: datetime) -> Budget:
    """Take one token of a node's report budget and lock its row. Raises `Throttled` when none is left."""
    found = await _take(conn, node, limits, now, limits.full)
    if found is None:
        wait = int(limits.wait.total_seconds())
        reason = (
            f"node {node} sent more reports than its budget allows ({limits.burst}, and {limits.per_minute} more per"
            f" minute); send them again in {wait} s"
        )
        raise Throttled(wait, Objection("reports_throttled", reason))
    return found


async def take_for_session(conn: AsyncConnection, node: NodeId, limits: Limits, now: datetime) -> None:
    """Take one token of a node's report budget for a session renewal, which may overdraw the budget by `SESSIONS`
    tokens. Raises `Throttled`.
    """
    reserve = limits.full + SESSIONS * limits.token
    if await _take(conn, node, limits, now, reserve) is None:
        wait = int(limits.wait.total_seconds())
        reason = f"node {node} requested more sessions than its budget allows; retry in {wait} s"
        raise Throttled(wait, Objection("sessions_throttled", reason))


async def _take(
    conn: AsyncConnection, node: NodeId, limits: Limits, now: datetime, most: timedelta
) -> Budget | None:
    spent = sa.func.greatest(row.c.spent_until, now) + limits.token
    statement = (
        insert(row)
        .values(node_id=node, spent_until=now + limits.token)
        .on_conflict_do_update(
            index_elements=["node_id"],
            set_={"spent_until": spent},
            where=row.c.spent_until + limits.token <= now + most,
        )
        .returning(row.c.spent_until, row.c.throttled_at, row.c.held_at)
    )
    found = (await conn.execute(statement)).one_or_none()
    return None if found is None else Budget(*found)


def cost_of(changes: tuple[Change, ...]) -> int:
    """Return the number of tokens that the ledger changes of a report cost. Facts that begin a stream are free: they
    are the first facts of a slot, and a node has few slots.
    """
    return max(1, sum(len(change.facts) for change in changes if change.expected_version))


async def charge(conn: AsyncConnection, node: NodeId, limits: Limits, tokens: int) -> None:
    """Take more tokens of a node's report budget, or return some if `tokens` is negative."""
    if tokens:
        spent = row.c.spent_until + tokens * limits.token
        await conn.execute(sa.update(row).where(row.c.node_id == node).values(spent_until=spent))


def may_record(budget: Budget, limits: Limits, now: datetime) -> bool:
    """Return whether a node's description of its host may be recorded now. If not, it is stored until the report budget
    allows it.
    """
    if budget.held_at is not None and now - budget.held_at >= HELD_AT_MOST:
        return True
    return budget.spent_until - now <= limits.state


async def hold(conn: AsyncConnection, node: NodeId, text: str, now: datetime) -> bool:
    """Store a node's description of its host, to be recorded later in place of an earlier description stored here.

    Return whether an episode of throttling begins with this description.
    """
    merged = row.c.merged + sa.case((row.c.held.is_not(None), 1), else_=0)
    values = {"held": text, "held_at": sa.func.coalesce(row.c.held_at, now), "merged": merged}
    return await _exceeded(conn, node, now, values)


async def count_refused(conn: AsyncConnection, node: NodeId, times: int, now: datetime) -> bool:
    """Count refused requests of a node; return whether an episode of throttling begins with them."""
    return await _exceeded(conn, node, now, {"refused": row.c.refused + times})


async def _exceeded(conn: AsyncConnection, node: NodeId, now: datetime, values: Mapping[str, object]) -> bool:
    began = sa.func.coalesce(row.c.throttled_at, now)
    statement = sa.update(row).where(row.c.node_id == node)
    statement = statement.values(throttled_at=began, exceeded_at=now, **values)
    throttled_at: datetime = (await conn.execute(statement.returning(row.c.throttled_at))).scalar_one()
    return throttled_at == now


async def count_merged(conn: AsyncConnection, node: NodeId, times: int) -> None:
    """Count descriptions of a host that a later description in the same request replaced."""
    statement = sa.update(row).where(row.c.node_id == node)
    await conn.execute(statement.values(merged=row.c.merged + times))


async def held(conn: AsyncConnection, node: NodeId) -> str | None:
    """Return the stored, not yet recorded host description of a node, or None; lock the row of its report budget."""
    query = sa.select(row.c.held).where(row.c.node_id == node).with_for_update()
    return (await conn.execute(query)).scalar_one_or_none()


async def release(conn: AsyncConnection, node: NodeId, *, replaced: bool) -> None:
    """Remove a node's stored host description, because it is recorded now or was `replaced` by a newer one."""
    statement = sa.update(row).where(row.c.node_id == node, row.c.held.is_not(None))
    merged = row.c.merged + int(replaced)
    await conn.execute(statement.values(held=None, held_at=None, merged=merged))


class Episode(NamedTuple):
    """An episode of throttling that is over: its start, and the numbers of refused requests and merged descriptions."""

    since: datetime
    refused: int
    merged: int


async def end_episode(conn: AsyncConnection, node: NodeId, limits: Limits, now: datetime) -> Episode | None:
    """End and return a node's episode of throttling and reset its counts, if the episode is over; else return None."""
    query = sa.select(row.c.throttled_at, row.c.refused, row.c.merged)
    mine = query.where(row.c.node_id == node, _over(limits, now)).with_for_update()
    found = (await conn.execute(mine)).one_or_none()
    if found is None:
        return None
    cleared = {"throttled_at": None, "exceeded_at": None, "refused": 0, "merged": 0}
    await conn.execute(sa.update(row).where(row.c.node_id == node).values(cleared))
    return Episode(*found)


class Due(NamedTuple):
    """Throttled nodes that need attention: `held` have a stored host description that may be recorded now, and the
    throttling of `over` has ended.
    """

    held: list[NodeId]
    over: list[NodeId]


async def due(conn: AsyncConnection, limits: Limits, now: datetime) -> Due:
    """Return the throttled nodes with a stored host description to record, or with throttling to end."""
    ripe = sa.and_(
        row.c.held.is_not(None),
        sa.or_(row.c.spent_until <= now + limits.state, row.c.held_at <= now - HELD_AT_MOST),
    )
    query = sa.select(row.c.node_id, ripe.label("ripe"), _over(limits, now).label("over"))
    found = (await conn.execute(query.where(row.c.throttled_at.is_not(None)))).all()
    return Due(
        [NodeId(each.node_id) for each in found if each.ripe],
        [NodeId(each.node_id) for each in found if each.over],
    )


def _over(limits: Limits, now: datetime) -> sa.ColumnElement[bool]:
    return sa.and_(
        row.c.throttled_at.is_not(None),
        row.c.held.is_(None),
        row.c.exceeded_at <= now - QUIET,
        row.c.spent_until <= now + limits.state,
    )
