"""`python -m deploy.checks.migrations`: check that the migrations create exactly the tables that the code defines.

The check migrates an empty, temporary Postgres. It prints every change that Alembic would still make, and fails if
there is one.
"""

import pkgutil
import sys
import tempfile
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

import read_models
from control_plane.schema import admin_engine, migrate
from deploy.embedded.postgres import PostgresServer
from events.ledger.tables import SCHEMAS, metadata
from read_models.generations import IDLE, idle_metadata


def differences(connection: sa.Connection) -> Sequence[object]:
    """Return the changes that a migrated database needs to match the SQLAlchemy metadata of the code.

    The comparison includes the second, idle copy of the read models' tables.
    """
    for module in pkgutil.iter_modules(read_models.__path__, "read_models."):
        import_module(module.name)
    import_module("control_plane.work.tables")
    return [*_differences(connection, metadata, SCHEMAS), *_differences(connection, idle_metadata(), (IDLE,))]


def _differences(
    connection: sa.Connection, expected: sa.MetaData, schemas: Collection[str]
) -> Sequence[object]:
    context = MigrationContext.configure(
        connection,
        opts={
            "include_schemas": True,
            "include_name": lambda name, type_, _: type_ != "schema" or name in schemas,
            "version_table_schema": "ledger",
            "compare_server_default": True,
        },
    )
    return list(compare_metadata(context, expected))


def main() -> int:
    """Print each difference between migrations and metadata on a line. Return 1 if there is a difference."""
    with tempfile.TemporaryDirectory(prefix="sp-check-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # when this check runs as root, the server runs as another user
        server = PostgresServer(folder / "postgres", folder / "run", settings={"fsync": "off"})
        server.start()
        try:
            migrate(server.admin_dsn)
            with admin_engine(server.admin_dsn).connect() as connection:
                found = differences(connection)
        finally:
            server.stop()
    for difference in found:
        sys.stderr.write(
            f"the migrations lack a change that the code defines; add a migration: {difference}\n"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
