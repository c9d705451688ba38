"""Real PostgreSQL server for tests: one per session, with a migrated template database that is cloned for every test.

`fsync` is off, because no test needs its data after a power failure. Each clone gets the database privileges again,
because `create database ... template` does not copy them. A test that stops or kills a server starts its own.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import sql

from control_plane.schema import migrate
from deploy.embedded.lab_catalogue import publish_lab_catalogue
from deploy.embedded.postgres import APP_ROLE, SEALER_ROLE, PostgresServer
from deploy.embedded.postgres_cluster import PostgresUnavailable, find_programs, server_user
from deploy.embedded.stack import sqlalchemy_url
from tests.plugins.distribution import ON_PACKAGED_POSTGRES
from tests.plugins.requirements import missing_server

TEMPLATE: Final = "sliceplane"
WITH_CATALOGUE: Final = "sliceplane_with_catalogue"
"""Name of the template database that contains the catalogue of the lab."""
_NUMBERS: Final = count(1)


@dataclass(frozen=True)
class Database:
    """Separate database with the complete schema, on the PostgreSQL server of the test session."""

    server: PostgresServer
    name: str

    @property
    def admin_dsn(self) -> str:
        return self.server.admin_dsn_of(self.name)

    @property
    def app_dsn(self) -> str:
        return self.server.app_dsn_of(self.name)

    @property
    def sealer_dsn(self) -> str:
        return self.server.sealer_dsn_of(self.name)

    def cut(self) -> int:
        """Terminate all connections to the database, as a restart of the server does. Wait for their end and return
        their number.
        """
        # A terminated server process ends later, and until then a check finds its connection usable: wait for its end.
        query = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s"
        with psycopg.connect(self.server.admin_dsn_of("postgres")) as conn:
            return len(conn.execute(query, [self.name]).fetchall())


@contextmanager
def server_folder() -> Iterator[Path]:
    """Create a temporary folder that the user of the PostgreSQL server may enter. Its name is short, because socket
    paths are limited.
    """
    folder = Path(tempfile.mkdtemp(prefix="sp-pg-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


PACKAGED: Final = "packaged"
BOTH: Final = "both"
ON_BOTH: Final = ("tests/ledger/", "tests/projections/test_rebuild.py")
"""Tests of the SQL functions and of the rebuild, which depend most on the version of the server."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres",
        default=os.environ.get("SLICEPLANE_TEST_POSTGRES", ""),
        metavar="FOLDER",
        help="run on the server programs in this folder (`/usr/lib/postgresql/15/bin`), on the newest one of the "
        f"Python package (`{PACKAGED}`), or on Debian's and those tests that depend most on its version also on the "
        f"packaged one (`{BOTH}`); the default comes from SLICEPLANE_TEST_POSTGRES, else it is Debian's",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With `--postgres both`, let the tests that depend most on the version of the server run on both servers."""
    on_both = metafunc.definition.nodeid.startswith(ON_BOTH) and "postgres_programs" in metafunc.fixturenames
    if on_both and metafunc.config.getoption("--postgres") == BOTH:
        # None: these tests share Debian's server with all other tests of the session, which have no parameter.
        ids = ["debian", ON_PACKAGED_POSTGRES]
        metafunc.parametrize("postgres_programs", [None, PACKAGED], indirect=True, scope="session", ids=ids)


@pytest.fixture(scope="session")
def postgres_programs(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Folder of the PostgreSQL server programs that the option `--postgres` selects."""
    option = str(request.config.getoption("--postgres"))
    given = str(getattr(request, "param", None) or ("" if option == BOTH else option))
    try:
        if given == PACKAGED:
            with _within_reach(find_programs(packaged=True)) as programs:
                yield programs
        else:
            yield Path(given) if given else find_programs()
    except PostgresUnavailable as missing:
        missing_server(str(missing))


@contextmanager
def _within_reach(programs: Path) -> Iterator[Path]:
    """Yield a folder with the PostgreSQL programs that the server's user may enter. If the tests run as root, this
    folder is a copy.
    """
    if server_user() is None:
        yield programs
        return
    with server_folder() as folder:
        installation, package = programs.parent, programs.parent.parent
        copied = shutil.copytree(installation, folder / package.name / installation.name)
        libraries = f"{package.name}.libs"  # the programs expect them beside their package
        shutil.copytree(package.parent / libraries, folder / libraries)
        yield copied / programs.name


@pytest.fixture(scope="session")
def postgres_server(postgres_programs: Path) -> Iterator[PostgresServer]:
    """PostgreSQL server of the test session. Tests must not change its template databases: `sliceplane`
    is migrated, and `sliceplane_with_catalogue` has the catalogue of the lab too.
    """
    with server_folder() as folder:
        server = PostgresServer(
            folder / "postgres", folder / "run", settings={"fsync": "off"}, programs=postgres_programs
        )
        server.start()
        try:
            migrate(server.admin_dsn)
            _make_template_with_catalogue(server)
            yield server
        finally:
            server.stop()


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    """Empty database with the complete, migrated schema."""
    with cloned(postgres_server) as database:
        yield database


def _make_template_with_catalogue(server: PostgresServer) -> None:
    with psycopg.connect(server.admin_dsn_of("postgres"), autocommit=True) as admin:
        _clone(admin, WITH_CATALOGUE, TEMPLATE)
    publish_lab_catalogue(sqlalchemy_url(server.app_dsn_of(WITH_CATALOGUE)))


def _clone(admin: psycopg.Connection, name: str, template: str) -> None:
    admin.execute(
        sql.SQL("create database {} template {} strategy file_copy").format(
            sql.Identifier(name), sql.Identifier(template)
        )
    )


@contextmanager
def cloned(server: PostgresServer, *, catalogue: bool = False) -> Iterator[Database]:
    """Clone the migrated template database for one test, and drop the clone at the end. With `catalogue`, the database
    has the catalogue of the lab; else its ledger is empty.
    """
    database = Database(server, f"test_{next(_NUMBERS)}")
    name = sql.Identifier(database.name)
    with psycopg.connect(server.admin_dsn_of("postgres"), autocommit=True) as admin:
        _clone(admin, database.name, WITH_CATALOGUE if catalogue else TEMPLATE)
        admin.execute(sql.SQL("revoke all on database {} from public").format(name))
        for role in (APP_ROLE, SEALER_ROLE):
            admin.execute(sql.SQL("grant connect on database {} to {}").format(name, sql.Identifier(role)))
        try:
            yield database
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(name))


Connect = Callable[[], Awaitable[psycopg.AsyncConnection]]


@pytest.fixture
async def connect(database: Database) -> AsyncIterator[Connect]:
    """Return a function that opens database connections as the application's role. The connections are closed after the
    test.
    """
    opened: list[psycopg.AsyncConnection] = []

    async def open_one() -> psycopg.AsyncConnection:
        opened.append(await psycopg.AsyncConnection.connect(database.app_dsn))
        return opened[-1]

    yield open_one
    for conn in opened:
        await conn.close()


@pytest.fixture
async def conn(connect: Connect) -> psycopg.AsyncConnection:
    return await connect()
