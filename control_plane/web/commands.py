"""The requests of a page as commands of the command line `sliceplane` and of curl, to copy.

The commands contain no secret: the shell takes the API key from the variable SLICEPLANE_API_KEY. A browser can trust a
CA that curl does not know, so over HTTPS, the shell takes a file with the CA from SLICEPLANE_CA if that is set.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from control_plane.web.calls import Query, path_of, url_of

_CA: Final = '${SLICEPLANE_CA:+--cacert} ${SLICEPLANE_CA:+"$SLICEPLANE_CA"}'
"""Nothing while the variable is not set. These are two expansions, because zsh does not split one into words."""


class Command(NamedTuple):
    """One request: its title, and its command line for `sliceplane` (empty if there is none) and for curl."""

    title: str
    cli: str
    curl: str


def command_of(
    request: Request,
    title: str,
    *,
    cli: Sequence[str],
    path: Sequence[str],
    query: Query | None = None,
    method: str = "GET",
    body: Mapping[str, Any] | None = None,
) -> Command:
    """Return the command of a request to the server address that the browser uses."""
    line = shlex.join(["sliceplane", *cli]) if cli else ""
    return Command(title, line, _curl(request, method, path, query or {}, body))


def _curl(
    request: Request, method: str, path: Sequence[str], query: Query, body: Mapping[str, Any] | None
) -> str:
    words = ["curl --silent --show-error --fail-with-body"]
    if request.url.scheme == "https":
        words.append(_CA)
    if path[-1] == "watch":
        words.append("--no-buffer")
    if method != "GET":
        words.append(f"--request {method}")
    words.append('--header "Authorization: Bearer $SLICEPLANE_API_KEY"')
    if body is not None:
        words.append(f"--header 'Content-Type: application/json' --data-raw {shlex.quote(json.dumps(body))}")
    return " ".join([*words, shlex.quote(f"{server_of(request)}{url_of(path_of(*path), query)}")])


def server_of(request: Request) -> str:
    """Return the server address that the browser uses, such as `https://sliceplane.example`. It is also the origin of
    the pages of the console.
    """
    return f"{request.url.scheme}://{request.url.netloc}"
