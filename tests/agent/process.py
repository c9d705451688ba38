"""The agent as a process of its own, on a simulated host whose file outlives it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from node_agent.lab.simulated.host import State
from node_agent.settings import Settings, SimulatedHostSettings

REPOSITORY = Path(__file__).resolve().parents[2]


class AgentProcess:
    """Start it, let it die or make it; `host` is what it left on the simulated host."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.host_file = folder / "host.json"
        simulated = SimulatedHostSettings(boot_seconds=0.05, host_file=self.host_file)
        self._config = folder / "agent.json"
        self._config.write_text(settings.model_copy(update={"simulated": simulated}).model_dump_json())
        self._log = folder / "agent.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, failpoints: str = "") -> None:
        environment = {**os.environ, "SLICEPLANE_FAILPOINTS": failpoints, "PYTHONPATH": str(REPOSITORY)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "node_agent", str(self._config)], stderr=log, env=environment
            )

    @property
    def died(self) -> bool:
        """Whether it killed itself at its failpoint."""
        assert self._process is not None
        ended = self._process.poll()
        assert ended in (None, -signal.SIGKILL), f"it ended with {ended}:\n{self.log()}"
        return ended is not None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(10)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(20)

    def clean_up(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def host(self) -> State:
        return msgspec.json.decode(self.host_file.read_bytes(), type=State)

    def log(self) -> str:
        return self._log.read_text()
