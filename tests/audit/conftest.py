"""Fixture of the audit tests: a database connection of the superuser."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.servers.postgres import Database


@pytest.fixture
async def admin(database: Database) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as conn:
        yield conn
