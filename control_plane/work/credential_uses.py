"""The last use of each credential in `work.credential_use`. A use is operational state: it is not in the ledger."""

import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.work.tables import credential_use


class Use(NamedTuple):
    """A use of a credential in this process. `at` is in seconds of the monotonic clock; `source` is the address of the
    client.
    """

    at: float
    source: str | None


class StoredUse(NamedTuple):
    """The stored last use of a credential. `at` is by the clock of the database."""

    at: datetime
    source: str | None


# Processes write the rows in the same order, so that they never deadlock. A use that another process has stored
# meanwhile is replaced only by a later one.
_STORE: Final = sa.text("""
insert into work.credential_use as stored (credential, used_at, source)
select credential, clock_timestamp() - make_interval(secs => age), source
from unnest(cast(:credentials as text[]), cast(:ages as float8[]), cast(:sources as text[]))
  as used(credential, age, source)
order by credential
on conflict (credential) do update set used_at = excluded.used_at, source = excluded.source
where stored.used_at < excluded.used_at
""")


async def store(conn: AsyncConnection, uses: Mapping[str, Use]) -> None:
    """Store the last use of each of these credentials, unless a later one is stored."""
    now = time.monotonic()
    values = {
        "credentials": [*uses],
        "ages": [now - use.at for use in uses.values()],
        "sources": [use.source for use in uses.values()],
    }
    await conn.execute(_STORE, values)


async def find(conn: AsyncConnection, credentials: Collection[str]) -> dict[str, StoredUse]:
    """Return the stored last use of each of these credentials; a credential that was never used is omitted."""
    query = sa.select(credential_use).where(credential_use.c.credential.in_(credentials))
    return {
        row["credential"]: StoredUse(row["used_at"], row["source"])
        for row in (await conn.execute(query)).mappings()
    }
