"""The actions of a page as commands of the command line `sliceplane` and of curl, to copy.

The commands contain no secret: the shell takes the API key from the variable SLICEPLANE_API_KEY.
"""

import json
import shlex
from typing import NamedTuple

from starlette.requests import Request

from control_plane.web.calls import path_of


class Command(NamedTuple):
    """One action: its name, and its command line for `sliceplane` and for curl."""

    title: str
    cli: str
    curl: str


class Commands:
    """The commands of a page, for the server address that the browser uses."""

    def __init__(self, request: Request) -> None:
        self._server = f"{request.url.scheme}://{request.url.netloc}"

    def of_allocation(self, name: str) -> list[Command]:
        """Return the commands that read an allocation and carry out its actions."""
        own = ("allocations", name)
        return [
            Command("Show", self._cli("allocations", "show", name), self._curl("GET", *own)),
            Command("Watch", self._cli("allocations", "watch", name), self._curl("GET", *own, "watch")),
            Command("Log in", self._cli("ssh", name), self._curl("GET", *own)),
            Command("Stop", self._cli("allocations", "stop", name), self._curl("POST", *own, "stop")),
            Command("Start", self._cli("allocations", "start", name), self._curl("POST", *own, "start")),
            Command(
                "Renew by 1 h",
                self._cli("allocations", "renew", name, "--lease", "1h"),
                self._curl("POST", *own, "lease", body={"lease_seconds": 3600}),
            ),
            Command("Release", self._cli("allocations", "release", name), self._curl("DELETE", *own)),
        ]

    def creation(self, body: object) -> Command:
        """Return the command that creates an allocation with this request body; there is none for `sliceplane`."""
        return Command("Create", "", self._curl("POST", "allocations", body=body))

    def _cli(self, *words: str) -> str:
        return shlex.join(["sliceplane", *words])

    def _curl(self, method: str, *segments: str, body: object = None) -> str:
        words = ["curl --silent --show-error --fail-with-body"]
        if segments[-1] == "watch":
            words.append("--no-buffer")
        if method != "GET":
            words.append(f"--request {method}")
        words.append('--header "Authorization: Bearer $SLICEPLANE_API_KEY"')
        if body is not None:
            words.append(
                f"--header 'Content-Type: application/json' --data-raw {shlex.quote(json.dumps(body))}"
            )
        return " ".join([*words, shlex.quote(f"{self._server}{path_of(*segments)}")])
