"""Starts of the control plane's programs: help, versions, and one sentence of error where a start fails."""

import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg import sql

from deploy.embedded.signing_key import ensure_signing_key
from deploy.embedded.stack import _url
from tests.checks.files import ROOT
from tests.servers.postgres import Database

PROGRAMS: Final = ("api", "dispatcher", "projector")
SECRET: Final = "a-secret-word"
NOWHERE: Final = {
    "SLICEPLANE_DATABASE_URL": f"postgresql+psycopg://app:{SECRET}@127.0.0.1:1/ledger",
    "SLICEPLANE_REDIS_URL": f"redis://app:{SECRET}@127.0.0.1:1",
}


def started(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with these settings and no other."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLICEPLANE_")}
    return subprocess.run(
        [sys.executable, "-m", "control_plane", *words],
        cwd=ROOT,
        env={**inherited, **settings},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def one_sentence(run: subprocess.CompletedProcess[str], *parts: str) -> None:
    """It failed with one line that has all these parts, and no secret."""
    assert (run.returncode, run.stdout) == (1, "")
    [line] = run.stderr.splitlines()
    assert [part for part in parts if part not in line] == [], line
    assert SECRET not in line


def database_url(database: Database) -> str:
    return _url(database.app_dsn).render_as_string(hide_password=False)


def test_help_is_printed_with_every_program() -> None:
    run = started("--help")
    assert (run.returncode, run.stderr) == (0, "")
    assert [
        each for each in (*PROGRAMS, "issue-key", "SLICEPLANE_DATABASE_URL") if each not in run.stdout
    ] == []


def test_version_is_the_one_of_the_project() -> None:
    released = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    run = started("--version")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split()[1].partition("+")[0] == released


@pytest.mark.parametrize("words", [(), ("nonsense",), ("api", "twice"), ("issue-key",)])
def test_wrong_usage_is_refused_with_the_place_of_the_help(words: tuple[str, ...]) -> None:
    run = started(*words)
    assert (run.returncode, run.stdout) == (2, "")
    assert "python -m control_plane --help" in run.stderr
    assert " ".join(words) in run.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_without_settings_names_those_that_are_required(program: str) -> None:
    run = started(program)
    one_sentence(run, "SLICEPLANE_DATABASE_URL: not set", "SLICEPLANE_REDIS_URL: not set", "Correct the")


@pytest.mark.parametrize("words", [*((each,) for each in PROGRAMS), ("issue-key", "admin")])
def test_program_without_a_database_names_its_address_and_gives_advice(words: tuple[str, ...]) -> None:
    run = started(*words, **NOWHERE)
    one_sentence(run, "app:***@127.0.0.1:1/ledger", "Connection refused", "Start PostgreSQL")


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
def test_setting_that_cannot_be_used_is_named_without_its_secret(name: str, value: str) -> None:
    one_sentence(started("api", **{**NOWHERE, name: value}), f"{name}: ", "Correct the environment variables")


def test_api_on_a_database_without_schema_names_the_migration_command(database: Database) -> None:
    empty = f"{database.name}_empty"
    with psycopg.connect(database.server.admin_dsn_of("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(empty)))
        try:
            url = _url(database.server.app_dsn_of(empty)).render_as_string(hide_password=False)
            run = started("api", **{**NOWHERE, "SLICEPLANE_DATABASE_URL": url})
        finally:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(empty)))
    one_sentence(run, "has no schema", "alembic upgrade head")


def test_api_on_a_database_that_does_not_exist_names_it(database: Database) -> None:
    url = _url(database.server.app_dsn_of("nowhere")).render_as_string(hide_password=False)
    one_sentence(started("api", **{**NOWHERE, "SLICEPLANE_DATABASE_URL": url}), '"nowhere" does not exist')


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def test_api_on_an_address_in_use_names_the_address(
    database: Database, tmp_path: Path, taken_address: str
) -> None:
    settings = {
        **NOWHERE,
        "SLICEPLANE_DATABASE_URL": database_url(database),
        "SLICEPLANE_SIGNING_KEY_FILE": str(ensure_signing_key(tmp_path / "key.pem")),
        "SLICEPLANE_LISTEN": taken_address,
    }
    one_sentence(started("api", **settings), taken_address, "Address already in use", "SLICEPLANE_LISTEN")


@pytest.mark.parametrize("program", ["api", "dispatcher"])
def test_program_without_a_signing_key_names_the_setting(database: Database, program: str) -> None:
    settings = {**NOWHERE, "SLICEPLANE_DATABASE_URL": database_url(database)}
    one_sentence(started(program, **settings), "SLICEPLANE_SIGNING_KEY_FILE is not set")
