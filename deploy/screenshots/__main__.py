"""`./dev screenshots [--state DIR] [--only PAGE ...] [--width N ...] [--theme NAME ...] [--height N] FOLDER`.

Makes a picture of every page of the web console of a running `./dev up`, best with `--demo`, in Chromium, at each width
and in each theme: FOLDER/PAGE-WIDTH-THEME.png. The pages are read only, except that it logs in and out.

Exit codes: 0 success; 1 a page has a fault (it is printed), or the pictures cannot be made; 2 wrong usage.
"""

import argparse
import base64
import hashlib
import json
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.sync_api import BrowserContext, Page
from playwright.sync_api import Error as BrowserError

from deploy.embedded.client import Api, ApiRefused
from deploy.embedded.layout import Layout, default_state
from deploy.screenshots.chromium import ChromiumNotFound, running_chromium
from deploy.screenshots.pages import LOGIN, ConsolePage, pages

Theme = Literal["light", "dark"]
WIDTHS: Final = (390, 1280, 1920)
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
_WINDOW_HEIGHT: Final = 900
_MOST_HEIGHT: Final = 3000
"""Pixels after which a picture of a long page ends."""
_EXPECTED: Final = {"missing": httpx.codes.NOT_FOUND}
"""Expected status codes of pages, by the name of the page. A page that is not listed must have status 200."""


def main(words: Sequence[str]) -> int:
    arguments = _parsed(words)
    state: Path = arguments.state or default_state(simulated=True)
    try:
        faults = [*_pictures(Layout(state.resolve()).client_file, arguments)]
    except FileNotFoundError as error:
        return _failed(f"{error.filename} does not exist; start the control plane with ./dev up --demo first")
    except (httpx.TransportError, ConnectionError) as error:
        return _failed(f"the API does not respond: {error}; start it with ./dev up --demo first")
    except (ApiRefused, BrowserError, ChromiumNotFound) as error:
        return _failed(str(error))
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    return 1 if faults else 0


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev screenshots", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help=f"state folder (default: {default_state(simulated=True)})"
    )
    parser.add_argument("--only", nargs="+", metavar="PAGE", help="only these pages, such as overview")
    parser.add_argument("--width", nargs="+", type=int, metavar="N", default=WIDTHS)
    parser.add_argument("--theme", nargs="+", choices=THEMES, metavar="NAME", default=THEMES)
    parser.add_argument(
        "--height", type=int, metavar="N", default=_MOST_HEIGHT, help="greatest height of a picture"
    )
    return parser.parse_args(words)


def _failed(reason: str) -> int:
    sys.stderr.write(f"no screenshots: {reason}\n")
    return 1


def _pictures(client_file: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Make all pictures, and yield the faults of the pages."""
    client = json.loads(client_file.read_text())
    trusted = ssl.create_default_context(cadata=client["ca"])
    found = pages(Api(client["url"], client["api_key"], trusted))
    if unknown := {*(arguments.only or ())} - {LOGIN, *(each.name for each in found)}:
        names = ", ".join([LOGIN, *(each.name for each in found)])
        yield f"unknown page {', '.join(sorted(unknown))}; choose from {names}"
        return
    chosen = [each for each in found if not arguments.only or each.name in arguments.only]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with running_chromium(*_trusting(client["url"], trusted)) as browser:
        for width in arguments.width:
            with closing(
                browser.new_context(
                    viewport={"width": width, "height": _WINDOW_HEIGHT}, reduced_motion="reduce"
                )
            ) as context:
                yield from _pictures_at(context, client, chosen, arguments)


def _trusting(url: str, trusted: ssl.SSLContext) -> Iterator[str]:
    """Yield the argument that lets Chromium trust the certificate of the API and no other that it cannot verify. The
    certificate is verified here, because Chromium cannot be given a CA for one start.
    """
    address = urlsplit(url)
    if address.scheme != "https":
        return
    with (
        closing(socket.create_connection((address.hostname, address.port), timeout=10)) as plain,
        closing(trusted.wrap_socket(plain, server_hostname=address.hostname)) as verified,
    ):
        certificate = x509.load_der_x509_certificate(verified.getpeercert(binary_form=True) or b"")
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode()
    yield f"--ignore-certificate-errors-spki-list={digest}"


def _pictures_at(
    context: BrowserContext,
    client: dict[str, Any],
    chosen: Sequence[ConsolePage],
    arguments: argparse.Namespace,
) -> Iterator[str]:
    """Make the pictures of one width in all themes, and yield the faults of the pages."""
    page = context.new_page()
    ui = f"{client['url']}/ui"
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{ui}/login")
    if not arguments.only or LOGIN in arguments.only:
        yield from _in_themes(page, ConsolePage(LOGIN, "/login"), arguments, problems)
    page.get_by_label("API key or token").fill(client["api_key"])
    page.get_by_role("button", name="Log in", exact=True).click()
    page.get_by_role("heading", name="Overview").wait_for()
    for each in chosen:
        response = page.goto(f"{ui}{each.path}")
        expected = _EXPECTED.get(each.name, httpx.codes.OK)
        if response is None or response.status != expected:
            yield f"{each.name}: {each.path} has status {response.status if response else 'none'}"
        yield from _in_themes(page, each, arguments, problems)
    # The page of a path that the console does not have offers no logout.
    page.goto(f"{ui}/")
    page.locator(".account summary").click()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("API key or token").wait_for()


def _in_themes(
    page: Page, shown: ConsolePage, arguments: argparse.Namespace, problems: list[str]
) -> Iterator[str]:
    """Make the pictures of the present page in all themes, and yield its faults."""
    width = page.evaluate("innerWidth")
    for theme in arguments.theme:
        page.emulate_media(color_scheme=theme)
        height = min(page.evaluate("document.documentElement.scrollHeight"), arguments.height)
        page.screenshot(
            path=arguments.folder / f"{shown.name}-{width}-{theme}.png",
            full_page=True,
            clip={"x": 0, "y": 0, "width": width, "height": height},
        )
    needed = page.evaluate("document.documentElement.scrollWidth")
    if needed > width:
        yield f"{shown.name}: {shown.path} is {needed} pixels wide in a window of {width}"
    yield from (f"{shown.name}: {each}" for each in problems)
    problems.clear()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
