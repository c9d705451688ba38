"""The start-up check that refuses a server on which the ledger's guarantees do not hold."""

from typing import Final

import psycopg

OLDEST: Final = 150000
_LOOK: Final = """
select pg_is_in_recovery(), current_setting('max_prepared_transactions')::int, current_setting('server_encoding'),
       current_setting('server_version_num')::int, (select rolsuper from pg_roles where rolname = current_user),
       exists (select from pg_class join pg_namespace on pg_namespace.oid = relnamespace
                where nspname = 'ledger' and relname = 'event')
"""


class UnfitServer(RuntimeError):
    """The server must not store the ledger; `reasons` lists everything that is wrong with it."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


async def refuse_unfit_server(conn: psycopg.AsyncConnection) -> None:
    """Raise `UnfitServer` with every reason if the server is unfit. Reads only."""
    row = await (await conn.execute(_LOOK)).fetchone()
    assert row is not None
    standby, prepared, encoding, version, superuser, has_schema = row
    reasons = (
        (
            standby,
            "it is a standby: the holders of the fence are visible on the primary only; connect to the primary",
        ),
        (
            prepared > 0,
            f"max_prepared_transactions is not 0 but {prepared}: a prepared append would outlive its session; set it to 0",
        ),
        (
            encoding != "UTF8",
            f"the database's encoding is {encoding}, but Merkle leaves need UTF8; recreate it with UTF8",
        ),
        (version < OLDEST, "it is older than PostgreSQL 15; upgrade it"),
        (
            not has_schema,
            "the database has no schema: run sliceplane-server migrate first",
        ),
        (
            superuser,
            "the application's role is a superuser, which may rewrite the ledger; connect with an ordinary role",
        ),
    )
    if wrong := tuple(reason for applies, reason in reasons if applies):
        raise UnfitServer(wrong)
