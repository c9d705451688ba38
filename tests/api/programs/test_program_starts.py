"""Starts of the control plane's programs: help, version, and a one-line error when a start fails."""

import gc
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from control_plane.programs import SERVER, Program
from control_plane.schema import admin_engine
from control_plane.server import main
from control_plane.wiring import reduce_garbage_collection
from deploy.checks.migrations import differences
from deploy.embedded.children import installed_program
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.signing_key import ensure_personal_key, ensure_signing_key
from deploy.embedded.ssh_key import ensure_key_pair
from deploy.embedded.stack import sqlalchemy_url
from events.ledger.personal import MasterKey
from tests.checks.files import ROOT
from tests.servers.postgres import Database
from tests.servers.program_copies import run_copy

SECRET: Final = "a-secret-word"
UNREACHABLE_SERVERS: Final = {
    "SLICEPLANE_DATABASE_URL": f"postgresql+psycopg://app:{SECRET}@127.0.0.1:1/ledger",
    "SLICEPLANE_REDIS_URL": f"redis://app:{SECRET}@127.0.0.1:1",
}

Main = Callable[..., subprocess.CompletedProcess[str]]


def run_program(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a control plane program until it exits, with only these SLICEPLANE environment variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLICEPLANE_")}
    return run_copy(installed_program(SERVER, *arguments), {**inherited, **settings})


@pytest.fixture
def main_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs `main` of `sliceplane-server` in the test process, for starts that are refused."""

    def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        for name in [each for each in os.environ if each.startswith("SLICEPLANE_")]:
            monkeypatch.delenv(name)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", [SERVER, *arguments])
        status = main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, printed.out, printed.err)

    return run


def assert_one_error_line(run: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Assert that the program failed with a single error line that contains all `parts` and not the secret."""
    assert (run.returncode, run.stdout) == (1, "")
    [line] = run.stderr.splitlines()
    assert [part for part in parts if part not in line] == [], line
    assert SECRET not in line


def database_url(database: Database) -> str:
    return sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False)


@pytest.mark.parametrize("words", [("--help",), ("migrate", "--help")])
def test_help_of_sliceplane_server_lists_every_program(main_of: Main, words: tuple[str, ...]) -> None:
    run = main_of(*words)
    assert (run.returncode, run.stderr) == (0, "")
    assert [
        each
        for each in (*Program, "migrate", "issue-key", "SLICEPLANE_DATABASE_URL")
        if each not in run.stdout
    ] == []


def test_version_option_of_sliceplane_server_prints_the_project_version() -> None:
    released = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    command = installed_program(SERVER, "--version")
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split()[1].partition("+")[0] == released


@pytest.mark.parametrize(
    "words", [(), ("nonsense",), ("api", "twice"), ("issue-key",), ("issue-key", "--nonsense")]
)
def test_wrong_usage_of_sliceplane_server_is_refused_with_a_reference_to_its_help(
    main_of: Main, words: tuple[str, ...]
) -> None:
    run = main_of(*words)
    assert (run.returncode, run.stdout) == (2, "")
    [line] = run.stderr.splitlines()
    assert "(see sliceplane-server --help)" in line
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize("program", Program)
def test_program_without_settings_fails_and_names_the_required_settings(program: str) -> None:
    run = run_program(program)
    other = "SEALING_KEY_FILE" if program == Program.SEALER else "REDIS_URL"
    assert_one_error_line(
        run, "SLICEPLANE_DATABASE_URL: not set", f"SLICEPLANE_{other}: not set", "Correct the"
    )


def test_program_collects_garbage_again_once_its_modules_are_imported() -> None:
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        reduce_garbage_collection()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)


def test_unknown_command_of_sliceplane_server_is_refused_with_the_list_of_commands(main_of: Main) -> None:
    assert (
        "choose one of api, dispatcher, projector, sealer, ssh-gateway, migrate, issue-key"
        in main_of("nonsense").stderr
    )


def test_migrate_without_a_database_url_names_the_setting_in_one_sentence(main_of: Main) -> None:
    assert_one_error_line(
        main_of("migrate"), "SLICEPLANE_MIGRATE_URL: not set. Correct the environment variables"
    )


@pytest.mark.parametrize("url", [SECRET, "", f"mysql://app:{SECRET}@127.0.0.1/ledger"])
def test_migrate_with_an_unusable_database_url_names_the_required_url_form_and_not_the_secret(
    main_of: Main, url: str
) -> None:
    run = main_of("migrate", SLICEPLANE_MIGRATE_URL=url)
    assert_one_error_line(run, "SLICEPLANE_MIGRATE_URL: the value must be a URL of the form postgresql://")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_migrate_without_a_running_database_server_names_the_address_of_the_server_and_gives_advice(
    scheme: str,
) -> None:
    run = run_program("migrate", SLICEPLANE_MIGRATE_URL=f"{scheme}://admin:{SECRET}@127.0.0.1:1/ledger")
    assert_one_error_line(
        run, "database ledger at 127.0.0.1:1", "Connection refused", "SLICEPLANE_MIGRATE_URL"
    )


def test_migrate_as_an_ordinary_role_states_that_it_needs_a_superuser(empty_database: Database) -> None:
    run = run_program("migrate", SLICEPLANE_MIGRATE_URL=empty_database.app_dsn)
    assert_one_error_line(run, f"database {empty_database.name} at", "permission denied", "superuser")


def test_migrate_prepares_an_empty_database_and_changes_nothing_when_repeated(
    empty_database: Database,
) -> None:
    for _ in ("first", "second"):
        run = run_program("migrate", SLICEPLANE_MIGRATE_URL=empty_database.admin_dsn)
        assert (run.returncode, run.stderr) == (0, "")
    with admin_engine(empty_database.admin_dsn).connect() as connection:
        assert differences(connection) == []


def test_migrate_refuses_a_schema_of_a_newer_release(empty_database: Database) -> None:
    with psycopg.connect(empty_database.admin_dsn) as admin:
        admin.execute("create schema ledger")
        admin.execute("create table ledger.alembic_version (version_num varchar(32) not null)")
        admin.execute("insert into ledger.alembic_version values ('9999_future')")
    run = run_program("migrate", SLICEPLANE_MIGRATE_URL=empty_database.admin_dsn)
    assert_one_error_line(run, "the revision 9999_future", "use the release that migrated it")


@pytest.mark.parametrize("words", [*((each,) for each in Program), ("issue-key", "admin")])
def test_program_with_an_unreachable_database_names_the_address_of_the_database_and_gives_advice(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    key = str(ensure_signing_key(tmp_path / "key.pem"))
    run = run_program(*words, **UNREACHABLE_SERVERS, SLICEPLANE_SEALING_KEY_FILE=key)
    assert_one_error_line(run, "app:***@127.0.0.1:1/ledger", "Connection refused", "Start PostgreSQL")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLICEPLANE_DATABASE_URL", SECRET),
        ("SLICEPLANE_DATABASE_URL", f"mysql://app:{SECRET}@127.0.0.1/ledger"),
        ("SLICEPLANE_DATABASE_URL", f"postgresql://app:{SECRET}@127.0.0.1:port/ledger"),
        ("SLICEPLANE_REDIS_URL", SECRET),
        ("SLICEPLANE_REDIS_URL", f"http://app:{SECRET}@127.0.0.1"),
        ("SLICEPLANE_LISTEN", "here"),
        ("SLICEPLANE_LISTEN", "127.0.0.1:8080,127.0.0.1:65536"),
        ("SLICEPLANE_QUEUE_PORT", "none"),
    ],
)
def test_invalid_setting_is_named_without_its_secret_value(main_of: Main, name: str, value: str) -> None:
    assert_one_error_line(
        main_of("api", **{**UNREACHABLE_SERVERS, name: value}),
        f"{name}: ",
        "Correct the environment variables",
    )


def test_api_on_a_database_without_schema_names_the_migration_command(empty_database: Database) -> None:
    run = run_program(
        "api", **{**UNREACHABLE_SERVERS, "SLICEPLANE_DATABASE_URL": database_url(empty_database)}
    )
    assert_one_error_line(run, "has no schema", "sliceplane-server migrate")


def test_api_on_a_database_that_does_not_exist_names_the_database(database: Database) -> None:
    url = sqlalchemy_url(database.server.app_dsn_of("nowhere")).render_as_string(hide_password=False)
    assert_one_error_line(
        run_program("api", **{**UNREACHABLE_SERVERS, "SLICEPLANE_DATABASE_URL": url}),
        '"nowhere" does not exist',
    )


def test_issue_key_with_the_role_of_the_sealer_names_the_required_role(database: Database) -> None:
    url = sqlalchemy_url(database.sealer_dsn).render_as_string(hide_password=False)
    run = run_program("issue-key", "admin", **{**UNREACHABLE_SERVERS, "SLICEPLANE_DATABASE_URL": url})
    assert_one_error_line(run, "sliceplane_sealer:***@", "needs a user with the role sliceplane_app")


@pytest.fixture
def empty_database(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database without a schema, on a server that has the application's role."""
    name = f"empty_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.admin_dsn_of("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            yield Database(postgres_server, name)
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def test_api_on_an_address_in_use_names_the_address(
    database: Database, tmp_path: Path, taken_address: str
) -> None:
    settings = {
        **UNREACHABLE_SERVERS,
        "SLICEPLANE_DATABASE_URL": database_url(database),
        "SLICEPLANE_SIGNING_KEY_FILE": str(ensure_signing_key(tmp_path / "key.pem")),
        "SLICEPLANE_PERSONAL_KEY_FILE": str(ensure_personal_key(tmp_path / "personal-key")),
        "SLICEPLANE_LISTEN": taken_address,
    }
    message = f"The API cannot listen on {taken_address}: Address already in use"
    assert_one_error_line(run_program("api", **settings), message, "SLICEPLANE_LISTEN")


@pytest.mark.parametrize("program", ["api", "dispatcher", "ssh-gateway"])
def test_program_without_a_signing_key_names_the_setting(
    database: Database, program: str, tmp_path: Path
) -> None:
    settings = {
        **UNREACHABLE_SERVERS,
        "SLICEPLANE_DATABASE_URL": database_url(database),
        "SLICEPLANE_PERSONAL_KEY_FILE": str(ensure_personal_key(tmp_path / "personal-key")),
    }
    assert_one_error_line(run_program(program, **settings), "SLICEPLANE_SIGNING_KEY_FILE is not set")


def test_ssh_gateway_without_a_usable_host_key_or_address_names_the_setting(
    database: Database, tmp_path: Path, taken_address: str
) -> None:
    settings = {
        **UNREACHABLE_SERVERS,
        "SLICEPLANE_DATABASE_URL": database_url(database),
        "SLICEPLANE_SIGNING_KEY_FILE": str(ensure_signing_key(tmp_path / "key.pem")),
        "SLICEPLANE_PERSONAL_KEY_FILE": str(ensure_personal_key(tmp_path / "personal-key")),
        "SLICEPLANE_SSH_GATEWAY_LISTEN": taken_address,
    }
    name, file = "SLICEPLANE_SSH_GATEWAY_HOST_KEY_FILE", tmp_path / "host-key"
    assert_one_error_line(run_program("ssh-gateway", **settings), f"{name} is not set")
    settings[name] = str(file)
    assert_one_error_line(run_program("ssh-gateway", **settings), f"the host key {file} cannot be read")
    file.write_text(SECRET)
    assert_one_error_line(run_program("ssh-gateway", **settings), f"the host key {file} cannot be used")
    file.unlink()
    ensure_key_pair(file)
    message = f"The SSH gateway cannot listen on {taken_address}: Address already in use"
    assert_one_error_line(run_program("ssh-gateway", **settings), message)


@pytest.mark.parametrize("program", [each for each in Program if each != Program.SEALER])
def test_program_without_a_usable_personal_key_names_the_setting_or_the_file(
    database: Database, program: str, tmp_path: Path
) -> None:
    settings = {**UNREACHABLE_SERVERS, "SLICEPLANE_DATABASE_URL": database_url(database)}
    assert_one_error_line(run_program(program, **settings), "SLICEPLANE_PERSONAL_KEY_FILE is not set")
    missing = tmp_path / "missing"
    run = run_program(program, **settings, SLICEPLANE_PERSONAL_KEY_FILE=str(missing))
    assert_one_error_line(run, f"the personal key file {missing} cannot be read: No such file or directory")


def test_program_with_the_personal_key_of_another_database_does_not_start(
    database: Database, tmp_path: Path
) -> None:
    _, wrapped = MasterKey(bytes(32)).new_key()
    with psycopg.connect(database.admin_dsn) as admin:
        admin.execute("insert into keys.project_key values ('k', 'p', %s, now())", [wrapped])
    other = ensure_personal_key(tmp_path / "personal-key")
    assert other.stat().st_mode & 0o777 == 0o600
    settings = {**UNREACHABLE_SERVERS, "SLICEPLANE_DATABASE_URL": database_url(database)}
    run = run_program("projector", **settings, SLICEPLANE_PERSONAL_KEY_FILE=str(other))
    assert_one_error_line(run, f"the personal key file {other} is not that of this database")
