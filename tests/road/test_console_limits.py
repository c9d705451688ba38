"""The limits of the duration of console sessions, with a control plane and an agent with a simulated host.

An API process with short limits has the connection of the caller.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.api.api_process import ApiProcess, api_process
from tests.contract.machines.viewer import Viewer
from tests.road.conftest import Site
from tests.road.test_consoles import Consoles, SocketDisplay, first

IDLE_SECONDS = 1.5
LONGEST_SECONDS = 4.0
LONG = 600.0


class Ended(Exception):
    """The server has sent the end of the session."""


class Caller(SocketDisplay):
    """The caller's side of a session, until the server ends it."""

    def read(self) -> bytes:
        if data := super().read():
            return data
        raise Ended


def updates(caller: Caller, viewer: Viewer) -> None:
    """Request and read an update of the display, as viewers do all the time."""
    viewer.pixels(*viewer.begun)


def keys(caller: Caller, viewer: Viewer) -> None:
    viewer.press("a")
    viewer.pixels(*viewer.begun)


def pointer(caller: Caller, viewer: Viewer) -> None:
    caller.write(struct.pack(">BBHH", 5, 0, 10, 10))
    viewer.pixels(*viewer.begun)


def typing(caller: Caller, viewer: Viewer) -> None:
    caller.write(b"a")
    caller.read()


def nothing(caller: Caller, viewer: Viewer) -> None:
    caller.read()


@contextmanager
def limited(site: Site, folder: Path, idle_seconds: float, seconds: float) -> Iterator[ApiProcess]:
    settings = {
        "SLICEPLANE_CONSOLE_IDLE_MINUTES": str(idle_seconds / 60),
        "SLICEPLANE_CONSOLE_HOURS": str(seconds / 3600),
    }
    with api_process(site.plane, folder / "api.log", **settings) as api:
        yield api


@pytest.mark.parametrize(
    ("kind", "act", "end"),
    [
        ("serial", nothing, "idle"),
        ("serial", typing, "too_long"),
        ("graphics", updates, "idle"),
        ("graphics", keys, "too_long"),
        ("graphics", pointer, "too_long"),
    ],
    ids=["serial-nothing", "serial-typing", "display-updates", "display-keys", "display-pointer"],
)
def test_console_session_without_input_of_a_person_ends_as_idle_and_one_with_input_at_its_maximum_duration(
    site: Site, tmp_path: Path, kind: str, act: Callable[[Caller, Viewer], None], end: str
) -> None:
    consoles = Consoles(site, kind=kind)
    # Of two limits, the one that the test expects is short enough to be reached.
    with limited(site, tmp_path, IDLE_SECONDS, LONGEST_SECONDS if end == "too_long" else LONG) as api:
        ticket = consoles.ticket()
        with consoles.socket(ticket, url=api.plane.url) as socket:
            assert first(socket) == {"state": "connected"}
            use(socket, act, shows_display=kind == "graphics")
    assert consoles.open() == []
    assert consoles.events(ticket["id"])[-1] == ("console.disconnected", end)


def use(socket: ClientConnection, act: Callable[[Caller, Viewer], None], *, shows_display: bool) -> None:
    """Use a session until the server ends it."""
    caller = Caller(socket)
    viewer = Viewer(caller)
    with suppress(Ended, ConnectionClosed):
        if shows_display:
            viewer.begin()
        while True:
            act(caller, viewer)
