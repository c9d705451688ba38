"""`python -m deploy.checks.migrations`: the migrations make exactly the tables that the code names.

A Postgres of its own is migrated from nothing; whatever Alembic would still change is printed, and is a failure.
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
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.schema import admin_engine, migrate
from events.tables import SCHEMAS, metadata
from read_models.generations import IDLE, idle_metadata


def differences(connection: sa.Connection) -> Sequence[object]:
    """What would have to change in a migrated database to make it what `metadata` says, the idle set included."""
    for module in pkgutil.iter_modules(read_models.__path__, "read_models."):
        import_module(module.name)
    import_module("control_plane.work")
    return [*_differences(connection, metadata, SCHEMAS), *_differences(connection, idle_metadata(), (IDLE,))]


def _differences(
    connection: sa.Connection, wanted: sa.MetaData, schemas: Collection[str]
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
    return list(compare_metadata(context, wanted))


def main() -> int:
    """1 when migrations and metadata differ, with every difference on a line."""
    with tempfile.TemporaryDirectory(prefix="sp-check-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # the server runs as another user when we are root
        server = PostgresServer(folder / "postgres", folder / "run", settings={"fsync": "off"})
        server.start()
        try:
            migrate(server.admin_dsn)
            with admin_engine(server.admin_dsn).connect() as connection:
                found = differences(connection)
        finally:
            server.stop()
    for difference in found:
        sys.stderr.write(f"migrations and metadata differ: {difference}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
