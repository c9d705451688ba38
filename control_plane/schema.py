"""Migration of the database schema, with Alembic, as a superuser of the database server.

`sliceplane-server migrate`, `./dev up` and the tests all use `migrate`. The migrations are in the repository's folder
`alembic`, which is installed as `control_plane/migrations`: as a top-level folder of an installation it would
be mixed up with the library of the same name.
"""

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from alembic.config import Config

_INSTALLED: Final = Path(__file__).with_name("migrations")
MIGRATIONS: Final = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[1] / "alembic"

_COMMENT: Final = sa.text("select obj_description('ledger'::regnamespace, 'pg_namespace')")


class MigrationFailed(Exception):
    """The database cannot be migrated; the message names the database and the reason."""


def migrate(admin_dsn: str) -> None:
    """Apply all missing migrations. Run this before any service starts; a service never runs it.

    Raises `MigrationFailed`; the migrations before the failed one stay applied.
    """
    # Imported here and not above: no other command needs Alembic, and its import is a seventh of a program's start.
    from alembic.config import Config
    from alembic.util import CommandError

    from alembic import command

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    engine = admin_engine(admin_dsn)
    try:
        with engine.connect() as connection:
            _refuse_other_schema(config, connection)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except sa.exc.DBAPIError as error:
        raise MigrationFailed(
            f"the migration of {_database(admin_dsn)} failed: {_first_line(error.orig)}"
        ) from error
    except (psycopg.Error, CommandError) as error:
        raise MigrationFailed(
            f"the migration of {_database(admin_dsn)} failed: {_first_line(error)}"
        ) from error
    finally:
        engine.dispose()


def baseline_mark() -> str:
    """Return the comment on the schema `ledger` that names the baseline from which a database was created."""
    digest = sha256()
    for file in sorted((MIGRATIONS / "sql" / "0001_baseline").glob("*.sql")):
        digest.update(file.read_bytes())
    return f"baseline {digest.hexdigest()}"


def admin_engine(admin_dsn: str) -> sa.Engine:
    return sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(admin_dsn), poolclass=sa.NullPool
    )


def _refuse_other_schema(config: "Config", connection: sa.Connection) -> None:
    """Check that this release has all migrations of the database, and the baseline from which it was created. Raises
    `CommandError`.
    """
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    applied = MigrationContext.configure(
        connection, opts={"version_table_schema": "ledger"}
    ).get_current_heads()
    contained = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if unknown := sorted({*applied} - contained):
        raise CommandError(
            f"the schema of the database has the revision {', '.join(unknown)}, which this release does not contain; "
            "use the release that migrated it"
        )
    if applied and connection.scalar(_COMMENT) != baseline_mark():
        raise CommandError(
            "the schema was created from another state of the baseline, which changes until the first release; "
            "migrate an empty database, or empty the state folder of ./dev up with ./dev reset"
        )
    # Reading the version began a transaction, and each migration has a transaction of its own.
    connection.rollback()


def _database(admin_dsn: str) -> str:
    """Return the name and the address of a connection string's database, as a text without the password."""
    options = conninfo_to_dict(admin_dsn)
    host, port = options.get("host", "the default host"), options.get("port", 5432)
    return f"database {options.get('dbname', options.get('user', '(default name)'))} at {host}:{port}"


def _first_line(error: BaseException | None) -> str:
    """Return the first line of an error; hints and further addresses follow on the other lines."""
    return str(error).partition("\n")[0].rstrip(". ")
