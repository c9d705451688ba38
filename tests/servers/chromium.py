"""Chromium for tests of the web console."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from deploy.screenshots.chromium import ChromiumNotFound, program, running_chromium
from tests.plugins.requirements import missing_server


def require_chromium() -> None:
    """Skip the test if Chromium is not installed. With CI=true, the test fails instead."""
    try:
        program()
    except ChromiumNotFound:
        missing_server("Debian's package chromium (`./dev test` as root installs it)")


@pytest.fixture
def chromium() -> Iterator[Browser]:
    """Chromium of the Debian package `chromium`. Each test has its own: Chromium starts processes when a page needs
    them, and they would count as left behind by that test.
    """
    require_chromium()
    with running_chromium() as browser:
        yield browser
