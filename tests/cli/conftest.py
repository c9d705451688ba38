"""Fixtures: a scripted control plane, and the command line configured for it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from control_plane.cli.program import program
from tests.cli.control_plane import ScriptedPlane, running_plane
from tests.cli.outcome import Outcome

KEY = "sp_test"
OWN_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0 me@here"


@pytest.fixture
def plane() -> Iterator[ScriptedPlane]:
    with running_plane() as plane:
        yield plane


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home directory of one test, with an SSH key and without configuration."""
    for name in (
        "SLICEPLANE_URL",
        "SLICEPLANE_API_KEY",
        "SLICEPLANE_CA",
        "XDG_STATE_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLICEPLANE_CONFIG", str(tmp_path / "client.json"))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_ed25519.pub").write_text(f"{OWN_KEY}\n")
    return tmp_path


@pytest.fixture
def environment(plane: ScriptedPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEPLANE_URL", plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", KEY)


@pytest.fixture
def unconfigured() -> Callable[..., Outcome]:
    """Function that runs the command line without options or environment variables that configure it."""

    def run(*words: str) -> Outcome:
        result = CliRunner().invoke(program, list(words), prog_name="sliceplane")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def sliceplane(unconfigured: Callable[..., Outcome], environment: None) -> Callable[..., Outcome]:
    """Function that runs the command line, configured for the scripted control plane by environment variables."""
    return unconfigured
