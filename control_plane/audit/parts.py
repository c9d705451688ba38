"""The parts of the database that a head contains digests of, as queries. Each returns rows with a name and a digest.

The rows of a part are hashed in the database, as PostgreSQL sends them, so that an export contains no hash of a
credential and no stored response. Names are unique within a part; line breaks and tabs in them are replaced.

A key belongs to the range of positions that contains the last event of its command. Only keys taken at most a minute
before the first event of the range are read, because an index finds these: no command takes a minute.
"""

from collections.abc import Iterable, Mapping
from typing import Final, LiteralString

import psycopg

from control_plane.audit.heads import Part, PartRow
from events.ledger.connection import fetch_rows, fetch_value

_LEDGER_TABLES: Final[LiteralString] = "select oid from pg_class where relnamespace = 'ledger'::regnamespace"
_QUERIES: Final[Mapping[Part, LiteralString]] = {
    Part.EPOCHS: """
        select epoch::text as name, sha256(record_send(e)) as content from ledger.epoch e
    """,
    Part.FUNCTIONS: f"""
        select oid::regprocedure::text as name, sha256(convert_to(pg_get_functiondef(oid), 'UTF8')) as content
          from pg_proc where pronamespace = 'ledger'::regnamespace
        union all
        select 'trigger ' || tgname || ' on ' || tgrelid::regclass,
               sha256(convert_to(pg_get_triggerdef(oid) || tgenabled::text, 'UTF8'))
          from pg_trigger where not tgisinternal and tgrelid in ({_LEDGER_TABLES})
        union all
        select 'rule ' || rulename || ' on ' || ev_class::regclass, sha256(convert_to(pg_get_ruledef(oid), 'UTF8'))
          from pg_rewrite where ev_class in ({_LEDGER_TABLES})
        union all
        select 'event trigger ' || evtname, sha256(convert_to(evtfoid::regprocedure::text || evtenabled::text, 'UTF8'))
          from pg_event_trigger
    """,
    Part.KEYS: """
        with range as (
          select (select recorded_at - interval '1 minute' from ledger.event where position > %(after)s
                   order by position limit 1) as begin,
                 (select recorded_at from ledger.event where position <= %(upto)s order by position desc limit 1) as end
        )
        select k.principal || ' ' || k.route || ' ' || k.key as name, sha256(record_send(k)) as content
          from ledger.command_key k, range
         where k.taken_at between range.begin and range.end
           and k.last_position > %(after)s and k.last_position <= %(upto)s
    """,
    Part.ROLES: f"""
        select 'role ' || rolname as name,
               sha256(convert_to(concat_ws(' ', rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin,
                                           rolreplication, rolbypassrls), 'UTF8')) as content
          from pg_roles where rolsuper or rolname like 'sliceplane%%'
        union all
        select 'member ' || member::regrole || ' of ' || roleid::regrole,
               sha256(convert_to(admin_option::text, 'UTF8'))
          from pg_auth_members
         where roleid::regrole::text like 'sliceplane%%' or member::regrole::text like 'sliceplane%%'
        union all
        select 'table ' || oid::regclass,
               sha256(convert_to(concat_ws(' ', relowner::regrole, relacl, relrowsecurity), 'UTF8'))
          from pg_class where oid in ({_LEDGER_TABLES}) and relkind in ('r', 'p', 'v', 'S')
        union all
        select 'function ' || oid::regprocedure, sha256(convert_to(concat_ws(' ', proowner::regrole, proacl), 'UTF8'))
          from pg_proc where pronamespace = 'ledger'::regnamespace
        union all
        select 'schema ' || nspname, sha256(convert_to(concat_ws(' ', nspowner::regrole, nspacl), 'UTF8'))
          from pg_namespace where nspname in ('ledger', 'read', 'work', 'idle', 'public')
    """,
    Part.SESSIONS: """
        select node_id || ' ' || number as name,
               sha256(convert_to(concat_ws(' ', key_thumbprint, credential_sha256, queue_password_sha256,
                                           prior_queue_password_sha256, extract(epoch from expires_at)), 'UTF8'))
               as content
          from work.node_session
    """,
}
_ROWS: Final[Mapping[Part, LiteralString]] = {
    part: "select regexp_replace(name, '[[:cntrl:]]', '?', 'g') as name, encode(content, 'hex') as digest"
    f" from ({query}) found"
    for part, query in _QUERIES.items()
}
# As `control_plane.audit.heads.part_digest` computes it: over the lines in the order of their bytes.
_DIGESTS: Final[Mapping[Part, LiteralString]] = {
    part: f"""
        select encode(sha256(coalesce(string_agg(line, '' order by line), '')), 'hex')
          from (select convert_to(name || E'\\t' || digest || E'\\n', 'UTF8') as line from ({rows}) rows) lines
    """
    for part, rows in _ROWS.items()
}
# Functions and roles are named as the search path requires; this one is that of the ledger's roles.
_PATH: Final = (
    "select set_config('search_path', 'pg_catalog, pg_temp', true), set_config('TimeZone', 'UTC', true)"
)


async def part_rows(
    conn: psycopg.AsyncConnection, part: Part, after: int = 0, upto: int = 0
) -> list[PartRow]:
    """Return the rows of a part in the caller's transaction. `after` and `upto` limit `Part.KEYS` to a range of
    positions.
    """
    await conn.execute(_PATH)
    return await fetch_rows(conn, PartRow, _ROWS[part], {"after": after, "upto": upto})


async def part_digests(
    conn: psycopg.AsyncConnection, parts: Iterable[Part], after: int = 0, upto: int = 0
) -> dict[Part, str]:
    """Return the digest of each of these parts, the same as `part_digest` returns for the rows of `part_rows`. The
    database computes all digests in one query: the sealer must not slow down appends.
    """
    wanted = [*parts]
    await conn.execute(_PATH)
    query = "select array[(" + "), (".join([_DIGESTS[each] for each in wanted]) + ")]"
    digests = await fetch_value(conn, query, {"after": after, "upto": upto}, prepare=True)
    return dict(zip(wanted, digests, strict=True))
