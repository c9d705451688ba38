"""`sliceplane-agent` as it is started: help, version, and one sentence for a configuration that cannot be used."""

import subprocess
import sys
from pathlib import Path

import pytest

from node_agent.version import agent_version
from tests.checks.files import ROOT


def started(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the agent to its end."""
    return subprocess.run(
        [sys.executable, "-m", "node_agent", *words],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_printed_with_usage_and_exit_codes(option: str) -> None:
    run = started(option)
    assert (run.returncode, run.stderr) == (0, "")
    for part in ("Usage: sliceplane-agent CONFIG", "--version", "Exit codes"):
        assert part in run.stdout


def test_version_is_the_one_that_the_agent_reports() -> None:
    run = started("--version")
    assert (run.returncode, run.stdout, run.stderr) == (0, f"sliceplane-agent {agent_version()}\n", "")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ((), "no configuration file given"),
        (("--nonsense",), "unknown option '--nonsense'"),
        (("a.json", "b.json"), "2 configuration files given"),
    ],
)
def test_wrong_usage_is_refused_with_one_sentence(words: tuple[str, ...], wrong: str) -> None:
    run = started(*words)
    assert (run.returncode, run.stdout) == (64, "")
    [line] = run.stderr.splitlines()
    assert wrong in line
    assert "usage: sliceplane-agent CONFIG" in line


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (None, "No such file"),
        (b"", "EOF"),
        (b"\xff\xfe", "file"),
        (b"{}", "node_id: Field required"),
        (b'{"nonsense": 1}', "nonsense"),
    ],
)
def test_unusable_configuration_is_refused_with_one_sentence_and_advice(
    tmp_path: Path, content: bytes | None, wrong: str
) -> None:
    config = tmp_path / "agent.json"
    if content is not None:
        config.write_bytes(content)
    run = started(str(config))
    assert (run.returncode, run.stdout) == (78, "")
    [line] = run.stderr.splitlines()
    assert wrong in line
    assert "docs/node.md" in line
