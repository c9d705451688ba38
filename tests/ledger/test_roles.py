"""Promise P14: the application's role cannot damage the ledger, and no other role can block it.

The tests read the list of protected objects from the database, so that they cover every table, sequence and function
that a migration adds. Three roles try: the application's own, an unprivileged role that may connect, and a role that
may read all data. Every attempt runs in a transaction that is rolled back, so that one that succeeds changes nothing.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, LiteralString, NamedTuple

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from deploy.embedded.postgres import APP_ROLE, PostgresServer
from tests.ledger.given import committed, on
from tests.servers.postgres import Database, cloned

OWNER: Final = "sliceplane_owner"
PASSWORD: Final = "of-a-test"
OTHERS: Final[dict[str, LiteralString]] = {
    "test_unprivileged": "",
    "test_reader": "grant pg_read_all_data to test_reader",
}
ROLES: Final = (APP_ROLE, *OTHERS)

WRITES: Final = (
    "insert into {table} default values",
    "update {table} set {column} = {column}",
    "delete from {table}",
    "truncate {table}",
    "merge into {table} t using {table} s on t.{column} = s.{column} when matched then delete",
    "select * from {table} for update",
    "select * from {table} for key share",
    "lock table {table} in share mode",
    "lock table {table} in row exclusive mode",
)
SCHEMA_CHANGES: Final = (
    "alter table {table} add column more text",
    "alter table {table} drop column {column}",
    "alter table {table} alter column {column} type text",
    "alter table {table} rename to other",
    "alter table {table} set schema public",
    "alter table {table} set (fillfactor = 10)",
    "alter table {table} set unlogged",
    "alter table {table} enable row level security",
    "alter table {table} disable trigger all",
    "alter table {table} disable trigger user",
    "alter table {table} owner to {role}",
    "create trigger t before insert on {table} execute function suppress_redundant_updates_trigger()",
    "create index on {table} ({column})",
    "create rule r as on insert to {table} do instead nothing",
    "create policy p on {table}",
    "create statistics ledger.s on ({column}::text) from {table}",
    "comment on table {table} is 'mine'",
    "drop table {table}",
    "drop table {table} cascade",
)
CIRCUMVENTIONS: Final = (
    "drop schema ledger cascade",
    "alter schema ledger rename to other",
    "create table ledger.mine (x int)",
    "create table read.mine (x int)",
    "create table work.mine (x int)",
    "create table public.mine (x int)",
    "create table pg_catalog.mine (x int)",
    "create temporary table event (x int)",
    "create schema mine",
    "create function public.f() returns int language sql return 1",
    "create event trigger e on ddl_command_start execute function suppress_redundant_updates_trigger()",
    "create publication p for all tables",
    "drop extension plpgsql cascade",
    "create role more",
    "set session_replication_role = replica",
    "set local session_replication_role = local",
    "select set_config('session_replication_role', 'replica', false)",
    "alter role {role} set session_replication_role = replica",
    "alter database {database} set session_replication_role = replica",
    "set allow_system_table_mods = on",
    "set zero_damaged_pages = on",
    "set role sliceplane_owner",
    "set role postgres",
    "set session authorization sliceplane_owner",
    "set session authorization postgres",
    "grant sliceplane_owner to {role}",
    "alter role {role} superuser",
    "alter role {role} bypassrls",
    "alter role sliceplane_owner login",
    "alter role sliceplane_app set idle_in_transaction_session_timeout = 0",
    "alter default privileges for role sliceplane_owner grant all on tables to {role}",
    "alter default privileges for role postgres grant all on tables to {role}",
    "reassign owned by sliceplane_owner to {role}",
    "drop owned by sliceplane_owner",
    "copy ledger.event to program 'cat'",
    "select pg_read_file('PG_VERSION')",
    "select pg_switch_wal()",
    "select pg_create_restore_point('mine')",
    "select pg_replication_origin_create('mine')",
    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'",
)
OWN_SETTINGS: Final = "alter role sliceplane_app set idle_in_transaction_session_timeout = 0"
"""Statement that changes a session default of the role itself. PostgreSQL permits it to every role; append relies on no
such default.
"""

MAY_CALL: Final = frozenset(
    {
        "append",
        "append_one",
        "append_many",
        "take_key",
        "take_new_keys",
        "free_keys",
        "note_dead",
        "note_gaps",
        "drawn",
        "fence",
        "current_epoch",
        "begin_swap",
        "end_swap",
        "lead",
    }
)
"""The functions of the schema `ledger` that the application may call; all others are reserved for the owner."""


class Role(NamedTuple):
    name: str
    conn: psycopg.Connection

    def succeeds(self, statement: str) -> bool:
        """Return whether the database role may run the statement. Raises any error other than insufficient
        privilege.
        """
        try:
            with self.conn.transaction(force_rollback=True):
                self.conn.execute(statement.encode())
        except InsufficientPrivilege:
            return False
        return True

    def allowed(self, statements: Iterable[str]) -> list[str]:
        return [statement for statement in statements if self.succeeds(statement)]


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    """Database that all tests of database roles share, because a rejected statement changes nothing."""
    with cloned(postgres_server) as database, psycopg.connect(database.admin_dsn, autocommit=True) as admin:
        for name, rights in OTHERS.items():
            admin.execute(sql.SQL("create role {} login password {}").format(sql.Identifier(name), PASSWORD))
            admin.execute(
                sql.SQL("grant connect on database {} to {}").format(
                    sql.Identifier(database.name), sql.Identifier(name)
                )
            )
            if rights:
                admin.execute(rights)
        try:
            yield database
        finally:
            for name in OTHERS:
                admin.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(name)))


@contextmanager
def connected(database: Database, name: str) -> Iterator[Role]:
    dsn = (
        database.app_dsn
        if name == APP_ROLE
        else make_conninfo(database.admin_dsn, user=name, password=PASSWORD)
    )
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield Role(name, conn)


@pytest.fixture(params=ROLES)
def role(request: pytest.FixtureRequest, database: Database) -> Iterator[Role]:
    with connected(database, request.param) as role:
        yield role


@pytest.fixture
def application(database: Database) -> Iterator[Role]:
    with connected(database, APP_ROLE) as role:
        yield role


@pytest.fixture(scope="module")
def admin(database: Database) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database.admin_dsn, autocommit=True) as conn:
        yield conn


SCHEMAS: Final = "select oid from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema'"


def tables(admin: psycopg.Connection, schema: LiteralString = "ledger") -> list[tuple[str, str]]:
    """Return each table of a database schema with the name of its first column."""
    found = admin.execute(
        "select c.oid::regclass::text, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = %s::regnamespace and c.relkind in ('r', 'p') and a.attnum = 1 order by 1",
        [schema],
    ).fetchall()
    assert found
    return found


def attempts(templates: Iterable[str], found: Iterable[tuple[str, str]], role: Role) -> Iterator[str]:
    for table, column in found:
        for template in templates:
            yield template.format(table=table, column=column, role=role.name)


def test_every_database_role_is_denied_writing_locking_or_changing_ledger_tables(
    admin: psycopg.Connection, role: Role
) -> None:
    assert {"ledger.event", "ledger.dead_position", "ledger.head", "ledger.claim"} <= {
        table for table, _ in tables(admin)
    }
    assert role.allowed(attempts(WRITES + SCHEMA_CHANGES, tables(admin), role)) == []


def test_every_role_is_denied_drawing_ledger_positions_outside_append(
    admin: psycopg.Connection, role: Role
) -> None:
    sequences = admin.execute(
        "select oid::regclass::text from pg_class where relnamespace = 'ledger'::regnamespace and relkind = 'S'"
    ).fetchall()
    templates = (
        "select nextval('{0}')",
        "select setval('{0}', 1)",
        "alter sequence {0} restart",
        "alter sequence {0} cache 100",
        "drop sequence {0} cascade",
    )

    assert sequences
    assert role.allowed(each.format(name) for (name,) in sequences for each in templates) == []


def test_every_role_is_denied_changing_ledger_functions(admin: psycopg.Connection, role: Role) -> None:
    functions = admin.execute(
        "select oid::regprocedure::text from pg_proc where pronamespace = 'ledger'::regnamespace"
    ).fetchall()
    templates = (
        "alter function {0} owner to {1}",
        "alter function {0} security invoker",
        "alter function {0} set search_path = public",
        "alter function {0} rename to other",
        "drop function {0} cascade",
    )

    assert functions
    assert role.allowed(each.format(name, role.name) for (name,) in functions for each in templates) == []
    assert not role.succeeds(
        "create or replace function ledger.current_epoch() returns integer language sql return 9"
    )


def test_application_role_may_call_only_the_listed_ledger_functions_and_other_roles_no_ledger_function(
    admin: psycopg.Connection, role: Role
) -> None:
    callable_ = admin.execute(
        "select distinct proname from pg_proc where pronamespace = 'ledger'::regnamespace"
        " and has_function_privilege(%s, oid, 'execute')",
        [role.name],
    ).fetchall()

    assert {name for (name,) in callable_} == (MAY_CALL if role.name == APP_ROLE else set())
    assert not role.succeeds("select ledger.begin_epoch('mine')")


def test_every_role_is_denied_statements_that_circumvent_the_ledger_functions(
    database: Database, role: Role
) -> None:
    statements = [statement.format(role=role.name, database=database.name) for statement in CIRCUMVENTIONS]

    assert role.allowed(statements) == ([OWN_SETTINGS] if role.name == APP_ROLE else [])

    with pytest.raises(InsufficientPrivilege):  # This statement cannot run inside a transaction.
        role.conn.execute("alter system reset application_name")


def test_every_role_is_denied_taking_or_releasing_advisory_locks(
    admin: psycopg.Connection, role: Role
) -> None:
    """The ledger's fence is an advisory lock: a role that could take this lock could block every reader."""
    functions = admin.execute(
        "select proname, pronargs from pg_proc"
        " where pronamespace = 'pg_catalog'::regnamespace and proname ~ 'advisory'"
    ).fetchall()
    arguments = {0: "", 1: "91600062775297", 2: "21328, 1"}

    assert len(functions) >= 21
    assert role.allowed(f"select {name}({arguments[count]})" for name, count in functions) == []


def test_application_role_is_denied_schema_changes_of_read_models_and_work_tables(
    admin: psycopg.Connection, role: Role
) -> None:
    found = [*tables(admin, "read"), *tables(admin, "work"), *tables(admin, "idle")]

    assert role.allowed(attempts(SCHEMA_CHANGES, found, role)) == []
    if role.name != APP_ROLE:
        assert role.allowed(attempts(WRITES, found, role)) == []


def test_unprivileged_role_reads_no_table_and_reader_role_reads_every_table(
    admin: psycopg.Connection, database: Database
) -> None:
    found = [*tables(admin), *tables(admin, "read"), *tables(admin, "work"), *tables(admin, "idle")]
    reads = [f"select from {table}" for table, _ in found]

    with (
        connected(database, "test_unprivileged") as unprivileged,
        connected(database, "test_reader") as reader,
    ):
        assert unprivileged.allowed(reads) == []
        assert reader.allowed(reads) == reads


@pytest.mark.parametrize("maker", ["postgres", OWNER])
def test_ledger_table_created_later_grants_write_privileges_to_no_other_role(
    admin: psycopg.Connection, role: Role, maker: str
) -> None:
    with admin.transaction(force_rollback=True):
        admin.execute(sql.SQL("set local role {}").format(sql.Identifier(maker)))
        admin.execute("create table ledger.later (x bigserial)")
        rights = admin.execute(
            "select has_table_privilege(%(role)s, 'ledger.later', 'insert, update, delete, truncate, references,"
            " trigger') or has_sequence_privilege(%(role)s, 'ledger.later_x_seq', 'usage, update')",
            {"role": role.name},
        ).fetchone()

    assert rights == (False,)


def test_owner_role_owns_every_object_and_no_role_is_a_member_of_it(admin: psycopg.Connection) -> None:
    owners = admin.execute(
        f"select distinct owner::regrole::text from ("
        f" select relowner as owner from pg_class where relnamespace in ({SCHEMAS}) and relname !~ '^alembic_version'"
        f" union all select proowner from pg_proc where pronamespace in ({SCHEMAS})"
        f" union all select nspowner from pg_namespace where oid in ({SCHEMAS}) and nspname <> 'public'"
        f") owned"
    ).fetchall()

    assert owners == [(OWNER,)]
    attributes = "select rolcanlogin, rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls"
    query = f"{attributes} from pg_roles where rolname = %s"
    assert admin.execute(query, [OWNER]).fetchone() == (False, False, False, False, False, False)
    assert admin.execute(query, [APP_ROLE]).fetchone() == (True, False, False, False, False, False)
    assert admin.execute(
        "select count(*) from pg_auth_members where roleid = %(owner)s::regrole or member = %(owner)s::regrole"
        " or member = %(application)s::regrole",
        {"owner": OWNER, "application": APP_ROLE},
    ).fetchone() == (0,)


def test_application_role_owns_no_object_and_no_privilege_is_grantable(admin: psycopg.Connection) -> None:
    owned = "select count(*) from pg_shdepend where refobjid = %s::regrole and deptype = 'o'"
    assert admin.execute(owned, [APP_ROLE]).fetchone() == (0,)

    grantable = admin.execute(
        f"select c.oid::regclass::text, acl.privilege_type from pg_class c, aclexplode(c.relacl) acl"
        f" where c.relnamespace in ({SCHEMAS}) and acl.grantee <> c.relowner and acl.is_grantable"
    ).fetchall()
    assert grantable == []


def test_pseudo_role_public_has_no_database_privileges(admin: psycopg.Connection) -> None:
    granted = admin.execute(
        f"select nspname, acl.privilege_type from pg_namespace, aclexplode(nspacl) acl"
        f" where oid in ({SCHEMAS}) and acl.grantee = 0"
        f" union all select relname, acl.privilege_type from pg_class, aclexplode(relacl) acl"
        f" where relnamespace in ({SCHEMAS}) and acl.grantee = 0"
        f" union all select proname, acl.privilege_type"
        f" from pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) acl"
        f" where pronamespace in ({SCHEMAS}) and acl.grantee = 0"
        f" union all select datname, acl.privilege_type from pg_database, aclexplode(datacl) acl"
        f" where datname = current_database() and acl.grantee = 0"
        f" union all select defaclobjtype::text, acl.privilege_type from pg_default_acl, aclexplode(defaclacl) acl"
        f" where acl.grantee = 0"
    ).fetchall()

    assert granted == []


def test_security_definer_functions_of_the_ledger_have_a_fixed_search_path(
    admin: psycopg.Connection,
) -> None:
    """The search path is set in the function's definition, or by `set_config` in its body, which is faster for a
    function that is called often.
    """
    paths = admin.execute(
        "select proname, 'search_path=pg_catalog, pg_temp' = any(proconfig)"
        " or prosrc ~ 'set_config\\(''search_path'', ''pg_catalog, pg_temp'', true\\)'"
        " from pg_proc where prosecdef and pronamespace = 'ledger'::regnamespace"
    ).fetchall()

    assert {"append", "take_key"} <= {name for name, _ in paths}
    assert [name for name, is_pinned in paths if not is_pinned] == []


def test_ledger_tables_have_no_triggers_or_rules(admin: psycopg.Connection) -> None:
    found = admin.execute(
        "select tgname from pg_trigger t join pg_class c on c.oid = tgrelid"
        " where not tgisinternal and relnamespace = 'ledger'::regnamespace"
        " union all select rulename from pg_rewrite r join pg_class c on c.oid = ev_class"
        " where relnamespace = 'ledger'::regnamespace union all select evtname from pg_event_trigger"
    ).fetchall()
    assert found == []


async def test_open_transaction_of_the_reader_role_blocks_no_append_to_the_ledger(
    database: Database, conn: psycopg.AsyncConnection
) -> None:
    """A database role without write privileges can hold at most an ACCESS SHARE lock on every table and an old
    snapshot.
    """
    with connected(database, "test_reader") as reader, reader.conn.transaction():
        reader.conn.execute("set transaction isolation level serializable")
        reader.conn.execute("lock table ledger.event, ledger.head, ledger.claim in access share mode")

        assert len(await committed(conn, on("slot-b", 0))) == 1


async def test_append_with_another_search_path_succeeds_and_keeps_that_path(
    conn: psycopg.AsyncConnection,
) -> None:
    await conn.execute("set search_path = work, public")
    await conn.commit()

    assert len(await committed(conn, on("slot-a", 0))) == 1
    row = await (await conn.execute("show search_path")).fetchone()
    assert row == ("work, public",)


async def test_application_sessions_have_idle_and_lock_timeouts(conn: psycopg.AsyncConnection) -> None:
    cursor = await conn.execute(
        "select current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'),"
        " current_setting('default_transaction_isolation')"
    )
    assert await cursor.fetchone() == ("4s", "5s", "read committed")


async def test_application_role_may_write_read_models_and_work_tables(
    admin: psycopg.Connection, conn: psycopg.AsyncConnection
) -> None:
    admin.execute("create table read.probe (x int)")
    admin.execute("create table work.probe (x bigserial)")
    try:
        await conn.execute("insert into read.probe values (1)")
        await conn.execute("insert into work.probe default values")
        await conn.execute("update read.probe set x = 2")
        assert (await conn.execute("delete from read.probe")).rowcount == 1
    finally:
        await conn.rollback()
        admin.execute("drop table read.probe, work.probe")
