"""A scripted control plane, and the command line pointed at it."""

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
    """A home of its own, with an SSH key and no configuration."""
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
def bare() -> Callable[..., Outcome]:
    """The command line as it is started, with nothing told to it."""

    def run(*words: str) -> Outcome:
        result = CliRunner().invoke(program, list(words), prog_name="sliceplane")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def sliceplane(bare: Callable[..., Outcome], environment: None) -> Callable[..., Outcome]:
    """The command line, which knows the scripted control plane."""
    return bare
