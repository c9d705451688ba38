"""Alembic environment: one transaction per migration, on the superuser's connection that the caller provides.

`control_plane.schema.migrate` is the caller. Services never migrate: migrations run before they start.
"""

import sqlalchemy as sa

from alembic import context
from events.ledger.tables import SCHEMAS, metadata


def migrate(connection: sa.Connection) -> None:
    # Alembic's version table is in `ledger`, and is created before the migration that would create the schema.
    connection.execute(sa.text("create schema if not exists ledger"))
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table_schema="ledger",
        include_schemas=True,
        include_name=lambda name, type_, _: type_ != "schema" or name in SCHEMAS,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


migrate(context.config.attributes["connection"])
