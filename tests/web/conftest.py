"""Fixtures of the tests in Chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.servers.lab import kept_folder
from tests.servers.npm_packages import NotInstalled, ensure_installed
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.web.visitors import Visitor, visiting


@pytest.fixture(scope="session")
def packages() -> Path:
    """Folder with the npm packages of these tests."""
    try:
        return ensure_installed(Path(__file__).with_name("npm"), kept_folder() / "web") / "node_modules"
    except NotInstalled as error:
        pytest.skip(f"the npm packages cannot be installed: {error}")


@pytest.fixture
def visitor(chromium: Browser, running_plane: RunningPlane) -> Iterator[Visitor]:
    with visiting(chromium, running_plane.url, ADMIN_KEY) as made:
        yield made
        assert made.faults == []
