"""Chromium for tests of the web console."""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture
def chromium() -> Iterator[Browser]:
    """Chromium of the Debian package `chromium`. Each test has its own: Chromium starts processes when a page needs
    them, and they would count as left behind by that test.
    """
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Debian's package chromium, which ./dev does not install")
    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root.
        arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        with closing(playwright.chromium.launch(executable_path=program, args=arguments)) as browser:
            yield browser
