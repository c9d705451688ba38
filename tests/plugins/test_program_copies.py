"""Tests that a copy of a program, forked from a process that has imported it, behaves like a new process of the
program.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.programs import SERVER
from deploy.embedded.children import Child, installed_program
from deploy.embedded.node_files import SLOTS
from tests.agent.control_plane import TOKEN
from tests.plugins.leftovers import snapshot
from tests.servers.program_copies import run_copy
from tests.waiting import until


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Child]:
    """Running agent of a simulated node, which cannot reach its control plane and tries again until it is stopped."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    settings = {
        "node_id": "n1",
        "api_url": "http://127.0.0.1:1",
        "enrolment_token_file": str(token),
        **{f"{name}_folder": str(tmp_path / name) for name in ("state", "run", "images")},
        "slots": SLOTS,
        "simulated": {"host_file": str(tmp_path / "host.json")},
    }
    configuration = tmp_path / "agent.json"
    configuration.write_text(json.dumps(settings))
    made = Child("n1", installed_program("sliceplane-agent", str(configuration)), tmp_path / "log")
    made.start()
    until(lambda: "node_enrolment_retried" in made.log.read_text(), "the agent tries to enrol again")
    yield made
    made.stop()


def test_copy_of_an_agent_is_a_child_of_the_test_process_with_its_own_command_line_and_session(
    agent: Child,
) -> None:
    assert agent.pid is not None
    process = Path(f"/proc/{agent.pid}")
    assert f"PPid:\t{os.getpid()}\n" in (process / "status").read_text()
    assert (process / "cmdline").read_text().rstrip("\0") == " ".join(agent.argv)
    assert os.getsid(agent.pid) == agent.pid


def test_leftover_check_finds_a_program_copy_until_it_has_ended(agent: Child) -> None:
    what = f"process {' '.join(agent.argv)}"
    assert snapshot(set())[what] == 1
    agent.stop()
    assert snapshot(set())[what] == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_exit_status_of_a_program_copy_after_a_signal_is_that_of_a_new_process(
    agent: Child, number: signal.Signals, status: int
) -> None:
    agent.send(number)
    until(lambda: agent.status is not None, "the agent has ended")
    assert agent.status == status


def test_copy_of_a_program_with_an_unknown_command_returns_its_exit_code_stdout_and_stderr() -> None:
    refused = run_copy(installed_program(SERVER, "nonsense"), {})
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "unknown command nonsense" in refused.stderr
    assert run_copy(installed_program(SERVER, "--version"), {}).stdout.startswith(f"{SERVER} ")
