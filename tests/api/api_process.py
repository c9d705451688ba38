"""One more API over a plane's database, as a process of its own that a test may kill."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from deploy.embedded.children import Child, python_module
from tests.servers.plane import RunningPlane, free_port
from tests.waiting import until


@dataclass(frozen=True)
class ApiProcess:
    """`plane` is the same plane, reached through this process."""

    plane: RunningPlane
    child: Child

    def kill(self) -> None:
        """Without a word, and wait for its end."""
        assert self.child.pid is not None
        os.kill(self.child.pid, 9)
        self.child.stop()

    def start(self) -> None:
        self.child.start()
        until(self._answers, "the API answers")

    def memory(self) -> int:
        """Bytes of it that are in memory (proc(5), `VmRSS`)."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(kib) * 1024

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return self.plane.client().get("/skus").status_code == httpx.codes.OK
        return False


@contextmanager
def api_process(plane: RunningPlane, log: Path) -> Iterator[ApiProcess]:
    address = f"127.0.0.1:{free_port()}"
    environment = {
        "SLICEPLANE_DATABASE_URL": plane.settings.database_url.get_secret_value(),
        "SLICEPLANE_REDIS_URL": plane.settings.redis_url.get_secret_value(),
        "SLICEPLANE_SIGNING_KEY_FILE": str(plane.settings.signing_key_file),
        "SLICEPLANE_LISTEN": address,
        "SLICEPLANE_PLACE_ON_SIMULATED_NODES": str(plane.settings.place_on_simulated_nodes).lower(),
    }
    child = Child("api", python_module("control_plane", "api"), log, environment)
    made = ApiProcess(replace(plane, url=f"http://{address}"), child)
    try:
        made.start()
        yield made
    finally:
        child.stop()
