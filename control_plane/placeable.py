"""What must hold for something new to be placed in a slot, and the word for each that does not hold.

Placement asks for all of it, and lists name the first that is lacking: from one place, so that what is listed as free
is what placement takes. Besides these an allocation asks for what it needs itself: its image, its ways in, and an agent
that knows of these and of its SKU's rate.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import work
from events.values import NodeId, SlotId, node_of
from read_models import nodes, slots

_BLOCKING: Final = "$[*] ? (@.blocks == true).kind"


class Need(NamedTuple):
    """`holds` may be null, where nobody said so yet: then it does not."""

    holds: sa.ColumnElement[bool]
    lacking: sa.ColumnElement[str]


def _kind_of_blocking(drift: sa.ColumnElement[object]) -> sa.ColumnElement[str]:
    found = sa.func.jsonb_path_query_first(drift, sa.cast(_BLOCKING, JSONPATH))
    return found.op("#>>")(sa.literal_column("'{}'"))


def _code(excluded: sa.ColumnElement[object]) -> sa.ColumnElement[str]:
    return excluded.op("->>")(sa.literal_column("'code'"))


HOST: Final = (
    Need(nodes.node.c.key_thumbprint.is_not(None), nodes.node.c.state),
    Need(sa.func.cardinality(nodes.node.c.missing) == 0, sa.literal("missing")),
    Need(sa.not_(nodes.node.c.blocked), _kind_of_blocking(nodes.node.c.drift)),
    Need(nodes.node.c.excluded.is_(None), _code(nodes.node.c.excluded)),
)
"""Needs of a node's row: it has access, lacks nothing, has no drift that concerns all of its slots, and is not excluded
after failed bring-ups.
"""
SLOT: Final = (
    Need(sa.not_(slots.slot.c.blocked), _kind_of_blocking(slots.slot.c.drift)),
    Need(slots.slot.c.excluded.is_(None), _code(slots.slot.c.excluded)),
)
"""Needs of a slot's row, besides that it is free."""


def heartbeat(silent_after: timedelta) -> tuple[Need, ...]:
    """Of a host's last heartbeat: that it is not overdue, and told of a host that compared all of its slots."""
    seen = work.node_seen
    on_time = seen.c.seen_at > sa.func.clock_timestamp() - silent_after
    return Need(on_time, sa.literal("silent")), Need(seen.c.resynced, sa.literal("resyncing"))


def kind(*, simulated_allowed: bool) -> Need:
    """Return the need that a host is real, which a deployment may waive and a request that names the host skips.

    A simulated host accepts every order but runs no guest, so its slices are of no use to callers.
    """
    real = nodes.node.c.simulated.is_not(sa.true())
    return Need(sa.true() if simulated_allowed else real, sa.literal("simulated"))


def all_hold(needs: Sequence[Need]) -> sa.ColumnElement[bool]:
    return sa.and_(*(need.holds for need in needs))


async def hosts_blocked(
    conn: AsyncConnection, names: Collection[NodeId], silent_after: timedelta, *, simulated_allowed: bool
) -> dict[NodeId, str]:
    """Return those of the hosts on which nothing new is placed now, each with the code of the reason.

    `simulated` comes last: a request that names the host has every other need.
    """
    node, (access, *sound) = nodes.node, HOST
    needs = (access, *heartbeat(silent_after), *sound, kind(simulated_allowed=simulated_allowed))
    lacking = _first_lacking(needs)
    heard = node.outerjoin(work.node_seen, work.node_seen.c.node_id == node.c.node_id)
    query = sa.select(node.c.node_id, lacking).select_from(heard).where(node.c.node_id.in_(names))
    found = await conn.execute(query)
    return {NodeId(name): word for name, word in found if word is not None}


async def slots_blocked(
    conn: AsyncConnection, names: Collection[SlotId], silent_after: timedelta, *, simulated_allowed: bool
) -> dict[SlotId, str]:
    """Those of the slots in which nothing new is placed now, be they free or not, each with the word for why."""
    of = {node_of(name) for name in names}
    hosts = await hosts_blocked(conn, of, silent_after, simulated_allowed=simulated_allowed)
    query = sa.select(slots.slot.c.slot_id, _first_lacking(SLOT)).where(slots.slot.c.slot_id.in_(names))
    own = {SlotId(name): word for name, word in await conn.execute(query)}
    found = ((name, hosts.get(node_of(name)) or word) for name, word in own.items())
    return {name: word for name, word in found if word is not None}


def _first_lacking(needs: Sequence[Need]) -> sa.ColumnElement[str | None]:
    return sa.case(*((need.holds.is_not(sa.true()), need.lacking) for need in needs), else_=None)
