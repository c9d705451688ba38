"""Echo latency of a console session: from the caller's WebSocket through two API processes and an agent, and back.

The guest is simulated and echoes at once. The node is connected to one API process and the caller to the other one, so
that each byte passes Redis. Directly at the node, the same simulated console takes microseconds; its median is
subtracted from each echo, which leaves what the relay adds.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
from websockets.sync.client import ClientConnection, connect

from bench.fleet.site import KEY, site
from bench.harness.servers import bench_folder
from deploy.embedded.children import Child, installed_program
from deploy.embedded.node_files import SLOTS
from deploy.embedded.ssh_key import ensure_key_pair
from node_agent.lab.simulated.machines import SimulatedConsole

ECHOES: Final = 200
"""Number of echoes of a round, one after the other."""
_WARM_UP: Final = 20
_NODE: Final = "sim-a"
_TIMEOUT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1


async def echoes() -> list[float]:
    """Start a control plane with one simulated node, and return the milliseconds that the relay adds to each echo."""
    with bench_folder() as folder:
        async with site(folder, {}) as running:
            node, caller = running.apis
            return await asyncio.to_thread(_measure, folder, node, caller)


def _measure(folder: Path, node: str, caller: str) -> list[float]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=f"{node}/v1", headers=headers, timeout=20) as client:
        token = client.post("/nodes", json={"id": _NODE}).raise_for_status().json()["enrolment_token"]
        agent = _agent(folder / _NODE, node, token)
        agent.start()
        try:
            ticket = _ticket(client, _allocation(client, folder))
            address = f"{caller.replace('http', 'ws', 1)}{ticket['path']}"
            with connect(address, additional_headers=headers, compression=None) as socket:
                socket.send(json.dumps({"ticket": ticket["ticket"]}))
                first = json.loads(socket.recv(_TIMEOUT_SECONDS))
                if first["state"] != "connected":
                    raise RuntimeError(f"the console session was not opened: {first}")
                relayed = _relayed(socket)
        finally:
            agent.stop()
    direct = median(_direct())
    return [each - direct for each in relayed]


def _agent(folder: Path, api_url: str, token: str) -> Child:
    folder.mkdir()
    (folder / "token").write_text(token)
    configuration = {
        "node_id": _NODE,
        "api_url": api_url,
        "enrolment_token_file": str(folder / "token"),
        "state_folder": str(folder / "agent"),
        "run_folder": str(folder / "run"),
        "images_folder": str(folder / "images"),
        "slots": list(SLOTS),
        "simulated": {"boot_seconds": 0.1, "host_file": str(folder / "host.json")},
    }
    path = folder / "agent.json"
    path.write_text(json.dumps(configuration))
    return Child(_NODE, installed_program("sliceplane-agent", str(path)), folder / "agent.log")


def _allocation(client: httpx.Client, folder: Path) -> str:
    """Approve a slot, create an allocation, and return its id when it is active."""
    _poll(lambda: client.post(f"/nodes/{_NODE}/slots/0/approve").is_success)
    body = {"sku": "lab.small", "ssh_authorized_keys": [ensure_key_pair(folder / "key")]}
    # Until the agent has compared its slots with their orders, no slot is available.
    created = _poll(lambda: _if_created(client.post("/allocations", json=body)))
    name = str(created["id"])
    _poll(lambda: client.get(f"/allocations/{name}").json()["state"] == "active")
    return name


def _if_created(answer: httpx.Response) -> Any:
    return answer.json() if answer.is_success else None


def _ticket(client: httpx.Client, allocation: str) -> dict[str, Any]:
    path = f"/allocations/{allocation}/console-sessions"
    made: dict[str, Any] = client.post(path, json={}).raise_for_status().json()
    return made


def _relayed(socket: ClientConnection) -> list[float]:
    shown = b""
    while b"login: " not in shown:
        shown += _received(socket)

    def send_and_receive() -> None:
        socket.send(b"a")
        _received(socket)

    return [*_timed(send_and_receive)][_WARM_UP:]


def _received(socket: ClientConnection) -> bytes:
    message = socket.recv(_TIMEOUT_SECONDS)
    if isinstance(message, str):
        raise RuntimeError(f"the console session has ended: {message}")  # noqa: TRY004 (not an error of the caller)
    return message


def _direct() -> list[float]:
    console = SimulatedConsole(lambda: None)

    def write_and_read() -> None:
        console.write(b"a")
        console.read()

    return [*_timed(write_and_read)]


def _timed(act: Callable[[], None]) -> Iterator[float]:
    for _ in range(ECHOES + _WARM_UP):
        began = time.perf_counter()
        act()
        yield (time.perf_counter() - began) * 1000


def _poll(read: Callable[[], Any]) -> Any:
    """Call `read` until its result is true, and return it. Raises `TimeoutError`."""
    until = time.monotonic() + _TIMEOUT_SECONDS
    while not (found := read()):
        if time.monotonic() > until:
            raise TimeoutError(f"the simulated node was not ready within {_TIMEOUT_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    return found
