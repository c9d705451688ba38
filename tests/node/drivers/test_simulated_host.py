"""Tests that the file of a simulated host has the same content for the same host, independent of the agent that wrote
it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from node_agent.lab.simulated.host import SimulatedHost
from tests.contract.network.hosts import Simulated, aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run, slice_on


def write(path: Path) -> None:
    """Set up one slice on a simulated host that stores its state in `path`."""
    host = Simulated(NETWORK, SimulatedHost(path, NETWORK.uplink))
    run(gateway_of(host).to_apply())
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(network(0))))


def written_by_another_process(path: Path, seed: int) -> dict[str, object]:
    program = f"from pathlib import Path; from {__name__} import write; write(Path({str(path)!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    written: dict[str, object] = json.loads(path.read_text())
    return written


def test_simulated_host_is_written_identically_by_processes_with_different_hash_seeds(tmp_path: Path) -> None:
    first, second = (written_by_another_process(tmp_path / str(seed), seed) for seed in (1, 2))
    assert first == second
