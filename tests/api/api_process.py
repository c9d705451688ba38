"""An additional API process on the database of a test control plane, which a test may kill."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx

from control_plane.programs import SERVER
from deploy.embedded.children import Child, installed_program
from tests.servers.plane import RunningPlane, free_port
from tests.waiting import until

_LIMITS: Final = (
    "requests_per_minute",
    "project_requests_per_minute",
    "unauthenticated_per_minute",
    "request_window_seconds",
)


@dataclass(frozen=True)
class ApiProcess:
    """A running API process. `plane` is the test control plane, reached through this process."""

    plane: RunningPlane
    child: Child

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        assert self.child.pid is not None
        os.kill(self.child.pid, 9)
        self.child.stop()

    def start(self) -> None:
        self.child.start()
        until(self._answers, "the API answers")

    def memory(self) -> int:
        """Return the resident memory of the process in bytes (proc(5), `VmRSS`)."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(kib) * 1024

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return self.plane.client().get("/skus").status_code == httpx.codes.OK
        return False


@contextmanager
def api_process(plane: RunningPlane, log: Path, **settings: str) -> Iterator[ApiProcess]:
    """Run an API process on the database and the Redis of `plane`, with its output in the file `log`. `settings` are
    added to its environment.
    """
    address = f"127.0.0.1:{free_port()}"
    environment = {
        "SLICEPLANE_DATABASE_URL": plane.settings.database_url.get_secret_value(),
        "SLICEPLANE_REDIS_URL": plane.settings.redis_url.get_secret_value(),
        "SLICEPLANE_SIGNING_KEY_FILE": str(plane.settings.signing_key_file),
        "SLICEPLANE_LISTEN": address,
        **{f"SLICEPLANE_{name.upper()}": str(getattr(plane.settings, name)) for name in _LIMITS},
        "SLICEPLANE_PLACE_ON_SIMULATED_NODES": str(plane.settings.place_on_simulated_nodes).lower(),
        **settings,
    }
    child = Child("api", installed_program(SERVER, "api"), log, environment)
    made = ApiProcess(replace(plane, url=f"http://{address}"), child)
    try:
        made.start()
        yield made
    finally:
        child.stop()
