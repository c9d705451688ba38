"""The start-up check that refuses a Postgres server on which the ledger's guarantees do not hold."""

from typing import Final, NamedTuple

import psycopg

from events.ledger.connection import fetch_row

OLDEST: Final = 150000
_LOOK: Final = """
select pg_is_in_recovery() as standby, current_setting('max_prepared_transactions')::int as prepared,
       current_setting('server_encoding') as encoding, current_setting('server_version_num')::int as version,
       (select rolsuper from pg_roles where rolname = current_user) as superuser,
       exists (select from pg_class join pg_namespace on pg_namespace.oid = relnamespace
                where nspname = 'ledger' and relname = 'event') as has_schema
"""


class _Server(NamedTuple):
    standby: bool
    prepared: int
    encoding: str
    version: int
    superuser: bool
    has_schema: bool


class UnfitServer(RuntimeError):
    """The Postgres server is unfit to store the ledger; `reasons` lists every problem."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


async def refuse_unfit_server(conn: psycopg.AsyncConnection) -> None:
    """Raise `UnfitServer` with every reason if the Postgres server is unfit to store the ledger. Reads only."""
    server = await fetch_row(conn, _Server, _LOOK)
    assert server is not None
    reasons = (
        (
            server.standby,
            "the server is a standby, which does not show the primary's running transactions; connect to the primary",
        ),
        (
            server.prepared > 0,
            f"max_prepared_transactions is not 0 but {server.prepared}: a prepared append would outlive its session; set it to 0",
        ),
        (
            server.encoding != "UTF8",
            f"the database's encoding is {server.encoding}, but Merkle leaves need UTF8; recreate it with UTF8",
        ),
        (server.version < OLDEST, "the server is older than PostgreSQL 15; upgrade it"),
        (
            not server.has_schema,
            "the database has no schema: run sliceplane-server migrate first",
        ),
        (
            server.superuser,
            "the application's role is a superuser, which may rewrite the ledger; connect with an ordinary role",
        ),
    )
    if wrong := tuple(reason for applies, reason in reasons if applies):
        raise UnfitServer(wrong)
