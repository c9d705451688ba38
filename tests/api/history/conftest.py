"""Fixtures of the tests of histories."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.servers.plane import settings_for
from tests.servers.postgres import Database


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    """Connections to the database of the test, as an API process has them."""
    settings = settings_for(database, "redis://nowhere", 0, 0)
    made = create_async_engine(settings.database_url.get_secret_value())
    yield made
    await made.dispose()
