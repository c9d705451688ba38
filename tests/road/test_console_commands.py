"""`sliceplane consoles terminal` and `display`, with a control plane and an agent with a simulated host."""

import os
import pty
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.contract.machines.viewer import Viewer
from tests.road.conftest import Site
from tests.servers.plane import ADMIN_KEY
from tests.waiting import until

SLICEPLANE = (sys.executable, "-m", "control_plane.cli", "consoles")
SECONDS = 20.0


@pytest.fixture
def allocation(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of an active allocation. The command line uses the control plane of the site."""
    monkeypatch.setenv("SLICEPLANE_URL", site.plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", ADMIN_KEY)
    made = site.create()
    site.await_state(made, "active")
    return made


def ends(site: Site) -> list[str]:
    """Return the reason codes of the sessions that have ended."""
    query = "select (data::jsonb)->'reason'->>'code' from ledger.event where type = 'console.disconnected'"
    return [code for (code,) in site.plane.rows(query)]


class OnTerminal:
    """A program that a test runs on a pseudo-terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", terminal: int) -> None:
        self.process, self._terminal, self._shown = process, terminal, b""

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def read_until(self, text: bytes) -> None:
        while text not in self._shown:
            ready, _, _ = select.select([self._terminal], [], [], SECONDS)
            assert ready, f"the terminal shows {self._shown!r}"
            self._shown += os.read(self._terminal, 4096)


@contextmanager
def on_terminal(*command: str) -> Iterator[OnTerminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        yield OnTerminal(process, ours)
        process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_terminal_command_connects_the_serial_console_until_the_user_leaves_it(
    site: Site, allocation: str
) -> None:
    with on_terminal(*SLICEPLANE, "terminal", allocation) as terminal:
        terminal.read_until(b"Ctrl-] ends the session")
        terminal.read_until(b"login: ")
        terminal.type(b"root\r")
        terminal.read_until(b"root\r\n")
        terminal.type(b"\x1d")
    assert terminal.process.returncode == 0
    until(lambda: ends(site) == ["closed_by_caller"], "the end is recorded")


def test_terminal_command_shows_the_reason_when_an_admin_cuts_its_session(
    site: Site, allocation: str
) -> None:
    with on_terminal(*SLICEPLANE, "terminal", allocation) as terminal:
        terminal.read_until(b"login: ")
        with site.plane.client() as client:
            [listed] = client.get("/console-sessions").json()["items"]
            assert client.post(f"/console-sessions/{listed['id']}/cut", json={"reason": "audit"}).is_success
        terminal.read_until(b"the session has ended: cut by")
    assert terminal.process.returncode == 1


def test_terminal_command_without_a_terminal_is_refused_before_a_session_is_requested(
    site: Site, allocation: str
) -> None:
    done = subprocess.run([*SLICEPLANE, "terminal", allocation], input=b"", capture_output=True, check=False)
    assert done.returncode == 2
    assert b"needs a terminal" in done.stderr
    assert site.plane.rows("select count(*) from ledger.event where type = 'console.requested'") == [(0,)]


class Connected:
    """Connection to the local port at which `sliceplane consoles display` provides a display."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)

    def read(self) -> bytes:
        return self._socket.recv(65536)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def waiting_for_viewer(*options: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run `sliceplane consoles display`, and yield its process and the local port at which it waits for a viewer."""
    process = subprocess.Popen([*SLICEPLANE, "display", *options], stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        found = re.search(rb"127\.0\.0\.1:(\d+)", process.stderr.readline())
        assert found is not None
        yield process, int(found[1])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_viewer_on_the_local_port_of_the_display_command_sees_and_controls_the_display(
    site: Site, allocation: str
) -> None:
    with waiting_for_viewer(allocation) as (process, port):
        viewer = Viewer(Connected(port))
        size = viewer.begin()
        before = viewer.pixels(*size)
        viewer.press("a")
        assert viewer.pixels(*size) != before
        with pytest.raises(ConnectionRefusedError):
            Connected(port)
        viewer.close()
        assert process.wait(SECONDS) == 0
    until(lambda: ends(site) == ["closed_by_caller"], "the end is recorded")


def test_display_of_an_unknown_allocation_and_a_port_in_use_are_refused(site: Site, allocation: str) -> None:
    with waiting_for_viewer("alc-0000000000000000000000000z") as (process, port):
        Connected(port)
        assert process.wait(SECONDS) == 1
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = str(server.getsockname()[1])
        done = subprocess.run(
            [*SLICEPLANE, "display", allocation, "--port", used], capture_output=True, check=False
        )
    assert done.returncode == 2
    assert f"cannot listen on port {used}".encode() in done.stderr
