"""An embedded Postgres server: a foreground child process on a unix socket.

Start order: create the cluster on disk (see `postgres_cluster`), clear a stale lock, start, wait until the server
answers, create database and roles if missing. The schema comes from Alembic afterwards, never from this
module. The caller owns both folders and the process. The server shuts down in order when the thread that started it
ends. After a crash, the next start recovers from the data folder.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from deploy.embedded.postgres_cluster import (
    Passwords,
    PostgresUnavailable,
    as_user,
    clear_stale_locks,
    ensure_cluster,
    find_programs,
    private_folder,
    scram_verifier,
    server_environment,
    server_user,
)

APP_ROLE: Final = "sliceplane_app"
SEALER_ROLE: Final = "sliceplane_sealer"
DATABASE: Final = "sliceplane"
SOCKET_PORT: Final = 5432
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02
_SOCKET_PATH_BYTES: Final = 107  # sun_path, unix(7)


@dataclass
class PostgresServer:
    """One Postgres server. `folder` holds its data, log and passwords; `run_folder` (short path, private) its socket.

    `listen` lists TCP addresses besides the socket (default: none). `settings` are server settings passed on the
    command line. `programs` is the folder of the server's binaries; by default it is searched for. `environment` adds
    to the fixed environment variables of the server.
    """

    folder: Path
    run_folder: Path
    listen: tuple[str, ...] = ()
    port: int = SOCKET_PORT
    settings: Mapping[str, str] = field(default_factory=dict)
    programs: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _passwords: Passwords | None = field(default=None, init=False, repr=False)

    def start(self) -> None:
        """Start the Postgres server and return when it answers.

        Raises `PostgresUnavailable` with the end of the server's log if it does not start."""
        self.launch()
        assert self.process is not None
        try:
            self._await_answer(self.process)
            self._ensure_role_and_database()
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Start the Postgres process and return at once: crash recovery has no time limit, and clients retry.

        Raises `PostgresUnavailable` when the process cannot be started at all.
        """
        programs, user = self.programs or find_programs(), server_user()
        self._passwords = ensure_cluster(programs, self.folder, user)
        private_folder(self.run_folder, user)
        clear_stale_locks(self.folder / "data", self.run_folder)
        with (self.folder / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*as_user(user), programs / "postgres", "-D", self.folder / "data", *self._options()],
                cwd=self.folder, env={**server_environment(programs), **self.environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C reaches the parent only, which then stops the server in order
            )  # fmt: skip

    def stop(self) -> None:
        """Stop Postgres: request a fast shutdown, then an immediate one, then kill the process. Idempotent."""
        process, self.process = self.process, None
        if process is None:
            return
        for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            process.send_signal(how)
            try:
                process.wait(STOP_SECONDS)
                return
            except subprocess.TimeoutExpired:
                continue

    @property
    def admin_dsn(self) -> str:
        """Connection string of the bootstrap superuser, for migrations and for creating databases."""
        return self.admin_dsn_of(DATABASE)

    @property
    def app_dsn(self) -> str:
        """Connection string of the application's role."""
        return self.app_dsn_of(DATABASE)

    @property
    def app_password(self) -> str:
        return self._known_passwords.app

    def admin_dsn_of(self, database: str) -> str:
        return self._dsn("postgres", self._known_passwords.admin, database)

    def app_dsn_of(self, database: str) -> str:
        return self._dsn(APP_ROLE, self.app_password, database)

    @property
    def sealer_dsn(self) -> str:
        """Connection string of the sealer's role."""
        return self.sealer_dsn_of(DATABASE)

    def sealer_dsn_of(self, database: str) -> str:
        return self._dsn(SEALER_ROLE, self._known_passwords.sealer, database)

    def _dsn(self, user: str, password: str, database: str) -> str:
        return make_conninfo(
            host=str(self.run_folder), port=self.port, user=user, password=password, dbname=database
        )

    @property
    def _known_passwords(self) -> Passwords:
        if self._passwords is None:
            raise PostgresUnavailable(
                "PostgreSQL has no passwords before its first start; call start() or launch() first"
            )
        return self._passwords

    def _options(self) -> list[str]:
        socket = self.run_folder / f".s.PGSQL.{self.port}"
        if len(os.fsencode(socket)) > _SOCKET_PATH_BYTES:
            raise PostgresUnavailable(
                f"the socket path {socket} exceeds {_SOCKET_PATH_BYTES} bytes; choose a shorter run folder"
            )
        settings = {
            "listen_addresses": ",".join(self.listen),
            "port": str(self.port),
            "unix_socket_directories": str(self.run_folder),
            "unix_socket_permissions": "0700",
            "max_connections": "200",
            "max_prepared_transactions": "0",  # the ledger's readers rely on this
            **self.settings,
        }
        return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.admin_dsn_of("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise PostgresUnavailable(
                        f"PostgreSQL did not start: {error}\nThe end of its log:\n{self._log_tail()}"
                    ) from error
            time.sleep(_POLL_SECONDS)

    def _log_tail(self) -> str:
        return "\n".join((self.folder / "postgres.log").read_text(errors="replace").splitlines()[-15:])

    def _ensure_role_and_database(self) -> None:
        with psycopg.connect(self.admin_dsn_of("postgres"), autocommit=True) as conn:
            if conn.execute("select pg_is_in_recovery()").fetchone() == (True,):
                return  # a standby has the roles and databases of its primary
            passwords = {
                "postgres": self._known_passwords.admin,
                APP_ROLE: self.app_password,
                SEALER_ROLE: self._known_passwords.sealer,
            }
            for role, password in passwords.items():
                if conn.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone() is None:
                    conn.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
                conn.execute(
                    sql.SQL("alter role {} password {}").format(
                        sql.Identifier(role), sql.Literal(scram_verifier(password))
                    )
                )
            if conn.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone() is None:
                conn.execute(
                    sql.SQL("create database {} template template0").format(sql.Identifier(DATABASE))
                )


@contextmanager
def running_postgres(
    folder: Path, run_folder: Path, *, settings: Mapping[str, str] | None = None, programs: Path | None = None
) -> Iterator[PostgresServer]:
    """Start an embedded Postgres server, yield it, and stop it at the end of the block."""
    server = PostgresServer(folder, run_folder, settings=settings or {}, programs=programs)
    server.start()
    try:
        yield server
    finally:
        server.stop()
