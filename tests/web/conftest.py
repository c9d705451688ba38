"""Fixtures of the tests in Chromium."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.servers.lab import kept_folder
from tests.servers.npm_packages import NotInstalled, ensure_installed
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.web.visitors import Visitor


@pytest.fixture(scope="session")
def packages() -> Path:
    """Folder with the npm packages of these tests."""
    try:
        return ensure_installed(Path(__file__).with_name("npm"), kept_folder() / "web") / "node_modules"
    except NotInstalled as error:
        pytest.skip(f"the npm packages cannot be installed: {error}")


@pytest.fixture
def visitor(chromium: Browser, running_plane: RunningPlane) -> Iterator[Visitor]:
    with closing(chromium.new_context(viewport={"width": 1280, "height": 800})) as context:
        made = Visitor(context, context.new_page(), running_plane.url)
        made.watch()
        made.open("/")
        made.page.locator("#key:focus").wait_for()
        made.page.keyboard.type(ADMIN_KEY)
        made.page.keyboard.press("Enter")
        made.page.get_by_role("heading", name="Overview").wait_for()
        yield made
        assert made.faults == []
