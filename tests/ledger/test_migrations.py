import pytest
import sqlalchemy as sa

from control_plane.schema import MigrationFailed, admin_engine, migrate
from deploy.checks.migrations import differences
from tests.servers.postgres import Database


def test_migrations_create_the_tables_that_the_code_defines(database: Database) -> None:
    with admin_engine(database.admin_dsn).connect() as connection:
        assert list(differences(connection)) == []


def test_database_table_without_a_definition_in_the_code_is_reported_as_a_difference_of_the_migrations(
    database: Database,
) -> None:
    with admin_engine(database.admin_dsn).connect() as connection:
        connection.execute(sa.text("create table work.stray (x int)"))
        assert "stray" in str(differences(connection))


def test_second_run_of_the_migrations_on_a_database_changes_nothing(database: Database) -> None:
    migrate(database.admin_dsn)


@pytest.mark.parametrize("comment", ["'baseline 0'", "null"], ids=["of another state", "without its digest"])
def test_database_that_was_created_from_another_baseline_is_refused_with_advice(
    database: Database, comment: str
) -> None:
    with admin_engine(database.admin_dsn).begin() as connection:
        connection.execute(sa.text(f"comment on schema ledger is {comment}"))
    with pytest.raises(MigrationFailed, match=r"another state of the baseline.*empty database.*\./dev reset"):
        migrate(database.admin_dsn)


def test_event_table_has_two_unique_indexes_and_no_other_index(database: Database) -> None:
    with admin_engine(database.admin_dsn).connect() as connection:
        query = "select indexdef from pg_indexes where schemaname = 'ledger' and tablename = 'event'"
        definitions = connection.execute(sa.text(query)).scalars().all()

    assert sorted(d.partition(" USING ")[2] for d in definitions) == [
        'btree ("position")',
        "btree (stream_id, version)",
    ]
    assert all(definition.startswith("CREATE UNIQUE INDEX") for definition in definitions)
