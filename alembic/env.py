"""How Alembic reaches the database: as the bootstrap superuser, online only, one transaction a migration.

The connection comes from the caller (`config.attributes["connection"]`), or is made from the libpq connection
string or URL in SLICEPLANE_MIGRATE_URL. Services never migrate: this runs before they start.
"""

import os

import sqlalchemy as sa

from alembic import context
from deploy.embedded.schema import admin_engine
from events.tables import SCHEMAS, metadata


def migrate(connection: sa.Connection) -> None:
    # Alembic's own table stands in `ledger`, and comes before the migration that would make the schema.
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


if given := context.config.attributes.get("connection"):
    migrate(given)
else:
    with admin_engine(os.environ["SLICEPLANE_MIGRATE_URL"]).connect() as made:
        migrate(made)
