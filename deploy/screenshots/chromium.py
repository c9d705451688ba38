"""Start of Debian's Chromium under the control of Playwright."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from playwright.sync_api import Browser, sync_playwright


class ChromiumNotFound(Exception):
    """Chromium is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Chromium is not installed. As root on Debian 12, ./dev installs it; elsewhere, install it yourself"
        )


def program() -> str:
    """Return the path of Chromium. Raises `ChromiumNotFound`."""
    found = shutil.which("chromium")
    if found is None:
        raise ChromiumNotFound
    return found


@contextmanager
def running_chromium(*arguments: str) -> Iterator[Browser]:
    """Run Chromium while the `with` block runs. Raises `ChromiumNotFound`."""
    found = program()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=_arguments(arguments))
        with closing(launched) as browser:
            yield browser


def _arguments(further: Sequence[str]) -> list[str]:
    # Chromium refuses its sandbox to root.
    return ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else []), *further]
