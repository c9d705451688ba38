import sqlalchemy as sa

from deploy.checks.migrations import differences
from deploy.embedded.schema import admin_engine, migrate
from tests.servers.postgres import Database


def test_migrations_make_what_the_code_names(database: Database) -> None:
    with admin_engine(database.admin_dsn).connect() as connection:
        assert list(differences(connection)) == []


def test_a_table_that_nobody_names_is_noticed(database: Database) -> None:
    with admin_engine(database.admin_dsn).connect() as connection:
        connection.execute(sa.text("create table work.stray (x int)"))
        assert "stray" in str(differences(connection))


def test_migrating_twice_changes_nothing(database: Database) -> None:
    migrate(database.admin_dsn)


def test_the_event_table_has_its_two_unique_indexes_and_no_other(database: Database) -> None:
    with admin_engine(database.admin_dsn).connect() as connection:
        query = "select indexdef from pg_indexes where schemaname = 'ledger' and tablename = 'event'"
        definitions = connection.execute(sa.text(query)).scalars().all()

    assert sorted(d.partition(" USING ")[2] for d in definitions) == [
        'btree ("position")',
        "btree (stream_id, version)",
    ]
    assert all(definition.startswith("CREATE UNIQUE INDEX") for definition in definitions)
