"""Many console sessions at once, and many bytes through one, with API processes and agents with simulated hosts."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest
from websockets.sync.client import ClientConnection

from deploy.embedded.children import Child
from tests import matrix
from tests.api.api_process import ApiProcess, api_process
from tests.contract.machines.viewer import Viewer
from tests.road.conftest import SimulatedNode, Site, running_site, start_node
from tests.road.test_consoles import Consoles, SocketDisplay, first, read_until
from tests.servers.plane import RunningPlane
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800 if matrix.is_full() else 120)]
MIB: Final = 1024 * 1024
WARM_UP: Final = 8 * MIB
VOLUME: Final = 1024 * MIB if matrix.is_full() else 32 * MIB
MOST_GROWTH: Final = 8 * MIB
"""Maximum growth of a program's memory in bytes during the test. Buffers may still grow after the warm-up; a program
that kept a third of the transferred bytes would grow more.
"""
_CYCLE: Final = bytes(range(128, 256))
PART: Final = _CYCLE * 128
IN_FLIGHT: Final = 4
SESSIONS: Final = 50
NODES: Final = tuple(f"sim-{name}" for name in "bcd")
"""Further nodes beside that of the site. They are needed because a node has at most 16 open consoles."""


@pytest.fixture
def api_of_node(emptied_plane: RunningPlane, tmp_path: Path) -> Iterator[ApiProcess]:
    # The agent gets the port of its queue from this process.
    port = {"SLICEPLANE_QUEUE_PORT": str(emptied_plane.settings.queue_port)}
    with api_process(emptied_plane, tmp_path / "api-of-node.log", **port) as api:
        yield api


@pytest.fixture
def api_of_caller(emptied_plane: RunningPlane, tmp_path: Path) -> Iterator[ApiProcess]:
    with api_process(emptied_plane, tmp_path / "api-of-caller.log") as api:
        yield api


@pytest.fixture
def site(api_of_node: ApiProcess, tmp_path: Path) -> Iterator[Site]:
    with running_site(api_of_node.plane, tmp_path) as made:
        yield made


def memory(child: Child) -> int:
    """Return the resident memory of a process in bytes (proc(5), `VmRSS`)."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kib) * 1024


def echo(socket: ClientConnection, size: int) -> None:
    """Send bytes to a guest that echoes them, and compare the echo."""
    sent = received = 0
    while received < size:
        while sent < size and sent - received < IN_FLIGHT * len(PART):
            socket.send(PART)
            sent += len(PART)
        data = socket.recv(timeout=20)
        assert isinstance(data, bytes), data
        at = received % len(_CYCLE)
        assert data == (PART[at:] + PART)[: len(data)]
        received += len(data)


def test_memory_of_api_and_agent_does_not_grow_with_the_bytes_through_a_console_session(
    site: Site, api_of_node: ApiProcess, api_of_caller: ApiProcess
) -> None:
    consoles = Consoles(site)
    programs = {
        "api of the caller": api_of_caller.child,
        "api of the node": api_of_node.child,
        "agent": site.node.agent,
    }
    with consoles.socket(consoles.ticket(), url=api_of_caller.plane.url) as socket:
        assert first(socket) == {"state": "connected"}
        read_until(socket, b"login: ")
        echo(socket, WARM_UP)
        before = {name: memory(child) for name, child in programs.items()}
        began = time.monotonic()
        echo(socket, VOLUME)
        took = time.monotonic() - began
        grown = {name: memory(child) - before[name] for name, child in programs.items()}
    print(f"{VOLUME / MIB:.0f} MiB in each direction in {took:.0f} s; memory before {before}, grown {grown}")
    assert max(grown.values()) < MOST_GROWTH, grown


def test_fifty_console_sessions_open_at_once_each_show_their_display(
    site: Site, api_of_caller: ApiProcess, tmp_path: Path
) -> None:
    with ExitStack() as opened:
        for name in NODES:
            opened.callback(start(site, tmp_path / name, name).agent.stop)
        site.await_placeable(2 * (1 + len(NODES)))
        consoles = [Consoles(site, kind="graphics", shared=True) for _ in range(2 * (1 + len(NODES)))]
        viewers = []
        for number in range(SESSIONS):
            each = consoles[number % len(consoles)]
            socket = opened.enter_context(each.socket(each.ticket(), url=api_of_caller.plane.url))
            assert first(socket) == {"state": "connected"}
            viewers.append(Viewer(SocketDisplay(socket)))
        assert {each["state"] for each in consoles[0].open()} == {"connected"}
        assert len(consoles[0].open()) == SESSIONS
        with ThreadPoolExecutor(SESSIONS) as at_once:
            sizes = [*at_once.map(Viewer.begin, viewers)]
            pictures = [*at_once.map(lambda viewer: len(viewer.pixels(*viewer.begun)), viewers)]
        assert pictures == [width * height for width, height in sizes]
        assert len(consoles[0].open()) == SESSIONS
        for viewer in viewers:
            viewer.close()
        until(lambda: consoles[0].open() == [], "no session is open", 20)
    assert site.plane.rows("select console_id from work.console") == []


def start(site: Site, folder: Path, name: str) -> SimulatedNode:
    """Start a further simulated node, and approve its slots."""
    node = start_node(site.plane, folder, name)
    client = site.plane.client()
    for index in (0, 1):
        await_approved(client, f"/nodes/{name}/slots/{index}/approve")
    return node


def await_approved(client: httpx.Client, path: str) -> None:
    until(lambda: client.post(path).is_success, f"{path} is successful")
