"""The database's schema, brought up to date by Alembic as the bootstrap superuser."""

from pathlib import Path
from typing import Final

import psycopg
import sqlalchemy as sa
from alembic.config import Config

from alembic import command

ALEMBIC_INI: Final = Path(__file__).parents[2] / "alembic.ini"


def migrate(admin_dsn: str) -> None:
    """Applies all migrations that the database has not seen. Run before any service starts, never by one."""
    engine = admin_engine(admin_dsn)
    try:
        with engine.connect() as connection:
            config = Config(str(ALEMBIC_INI))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def admin_engine(admin_dsn: str) -> sa.Engine:
    return sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(admin_dsn), poolclass=sa.NullPool
    )
