"""Start of `sliceplane-agent`: help, version, and a one-line error for wrong usage or an unusable configuration."""

import os
import subprocess
from pathlib import Path

import pytest

from deploy.embedded.children import installed_program
from node_agent.runtime.version import agent_version
from tests.servers.program_copies import run_copy


def run_agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `sliceplane-agent` with these arguments until it exits."""
    return run_copy(installed_program("sliceplane-agent", *arguments), os.environ)


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_option_of_sliceplane_agent_prints_usage_and_exit_codes(option: str) -> None:
    run = run_agent(option)
    assert (run.returncode, run.stderr) == (0, "")
    for part in ("Usage: sliceplane-agent CONFIG", "--version", "Exit codes"):
        assert part in run.stdout


def test_version_option_of_sliceplane_agent_prints_the_version_that_the_agent_reports() -> None:
    command = installed_program("sliceplane-agent", "--version")
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"sliceplane-agent {agent_version()}\n", "")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "no configuration file given"),
        (("--nonsense",), "unknown option '--nonsense'"),
        (("a.json", "b.json"), "2 configuration files given"),
    ],
)
def test_wrong_usage_of_sliceplane_agent_is_refused_with_one_sentence(
    arguments: tuple[str, ...], error: str
) -> None:
    run = run_agent(*arguments)
    assert (run.returncode, run.stdout) == (64, "")
    [line] = run.stderr.splitlines()
    assert error in line
    assert "usage: sliceplane-agent CONFIG" in line


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "No such file"),
        (b"", "EOF"),
        (b"\xff\xfe", "file"),
        (b"{}", "node_id: Field required"),
        (b'{"nonsense": 1}', "nonsense"),
    ],
)
def test_unusable_agent_configuration_is_refused_with_one_sentence_and_advice(
    tmp_path: Path, content: bytes | None, error: str
) -> None:
    config = tmp_path / "agent.json"
    if content is not None:
        config.write_bytes(content)
    run = run_agent(str(config))
    assert (run.returncode, run.stdout) == (78, "")
    [line] = run.stderr.splitlines()
    assert error in line
    assert "docs/node.md" in line
