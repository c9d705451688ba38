"""Refusing a server on which the ledger's promises do not hold, before anything is done on it."""

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
    """The server must not carry the ledger; `reasons` names all that is wrong with it."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


async def refuse_unfit_server(conn: psycopg.AsyncConnection) -> None:
    """Raises `UnfitServer` with every reason. Looks, and changes nothing."""
    row = await (await conn.execute(_LOOK)).fetchone()
    assert row is not None
    standby, prepared, encoding, version, superuser, has_schema = row
    reasons = (
        (standby, "it is a standby: the holders of the fence are visible on the primary only"),
        (prepared > 0, "max_prepared_transactions is not 0: a prepared append would outlive its session"),
        (encoding != "UTF8", f"the database's encoding is {encoding}, and leaves are made of UTF-8"),
        (version < OLDEST, "it is older than PostgreSQL 15"),
        (
            not has_schema,
            "the database has no schema: run SLICEPLANE_MIGRATE_URL=... alembic upgrade head first",
        ),
        (superuser, "the application's role is a superuser, whom nothing keeps from rewriting the log"),
    )
    if wrong := tuple(reason for applies, reason in reasons if applies):
        raise UnfitServer(wrong)
