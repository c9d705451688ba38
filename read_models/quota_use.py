"""`read.quota_use`: how much of its quotas each project and each caller uses (ALC-13).

The rows are sums, unlike those of other read models: a fact adds amounts to them, and never assigns a value. They are
written in the transaction that appends the facts, so that a later request finds them. A holder is the stream of a
project or of a principal, and its use is the sum of its rows, of which it has at most `events.derived.quotas.SHARDS`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from events.derived.quotas import NOTHING_USED, QuotaUse, use_changes
from events.facts import Fact
from events.ledger.tables import metadata
from events.values import StreamId
from read_models.compiled import CompiledQuery
from read_models.rows import Amounts

quota_use = sa.Table(
    "quota_use",
    metadata,
    sa.Column("holder", sa.Text, primary_key=True),
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("slots", sa.BigInteger, nullable=False),
    sa.Column("gpus", sa.BigInteger, nullable=False),
    sa.Column("vcpus", sa.BigInteger, nullable=False),
    sa.Column("memory_mib", sa.BigInteger, nullable=False),
    sa.Column("public_addresses", sa.BigInteger, nullable=False),
    sa.Column("public_ports", sa.BigInteger, nullable=False),
    sa.Column("waiting_requests", sa.BigInteger, nullable=False),
    sa.Column("price_per_hour", sa.Numeric, nullable=False),
    schema="read",
)


def amounts(fact: Fact) -> list[Amounts]:
    """Return the amounts that a fact adds to rows of the table."""
    return [Amounts((holder, shard), added) for holder, shard, added in use_changes(fact)]


async def used_by(conn: AsyncConnection, holders: Collection[StreamId]) -> dict[StreamId, QuotaUse]:
    """Return the present use of each holder."""
    return by_holder(await USED.rows(conn, {"holders": [*holders]}), holders)


USED: Final = CompiledQuery(
    sa.select(
        quota_use.c.holder,
        *(
            sa.cast(sa.func.sum(each), each.type).label(each.name)
            for each in (quota_use.c[name] for name in QuotaUse._fields)
        ),
    )
    .where(quota_use.c.holder == sa.any_(sa.bindparam("holders", type_=ARRAY(sa.Text))))
    .group_by(quota_use.c.holder)
)
"""Query for the use of quotas by the holders in the parameter `holders`; `by_holder` reads its rows."""


HELD: Final = CompiledQuery(
    sa.select(sa.text("*")).select_from(
        sa.func.work.hold_quotas(sa.bindparam("holders", type_=ARRAY(sa.Text)))
    )
)
"""Query that locks the use of quotas by the holders in the parameter `holders` until the transaction ends, and returns
their use with the changes of this transaction; `by_holder` reads its rows.
"""


def by_holder(rows: Iterable[Mapping[Any, Any]], holders: Collection[StreamId]) -> dict[StreamId, QuotaUse]:
    """Return the use of quotas by each holder, from `rows`. A holder without a row uses nothing."""
    found = {StreamId(row["holder"]): _use(row) for row in rows}
    return {each: found.get(each, NOTHING_USED) for each in holders}


def _use(row: Mapping[Any, Any]) -> QuotaUse:
    return QuotaUse._make(row[name] for name in QuotaUse._fields)
