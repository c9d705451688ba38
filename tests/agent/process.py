"""The agent as a separate process on a simulated host with a state file that outlives the process."""

import signal
from pathlib import Path

import msgspec

from deploy.embedded.children import Child, Process, installed_program
from node_agent.lab.simulated.host import State
from node_agent.settings import Settings, SimulatedHostSettings


class AgentProcess:
    """An agent process that a test starts, kills and restarts; `host` reads the state of its simulated host."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.host_file = folder / "host.json"
        simulated = SimulatedHostSettings(boot_seconds=0.05, host_file=self.host_file)
        self._config = folder / "agent.json"
        self._config.write_text(settings.model_copy(update={"simulated": simulated}).model_dump_json())
        self._log = folder / "agent.log"
        self._process: Process | None = None

    def start(self, failpoints: str = "") -> None:
        environment = {"SLICEPLANE_FAILPOINTS": failpoints}
        with self._log.open("ab") as log:
            self._process = Child.starter(
                installed_program("sliceplane-agent", str(self._config)), environment, log
            )

    @property
    def died(self) -> bool:
        """Whether the agent killed itself at its failpoint."""
        assert self._process is not None
        exit_code = self._process.poll()
        assert exit_code in (None, -signal.SIGKILL), f"agent ended with exit code {exit_code}:\n{self.log()}"
        return exit_code is not None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the agent process, wait until it exits, and return its exit code."""
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
