"""Tests of the conditions under which a Python environment counts as ready. tests/clean_machine covers its creation."""

import os
from pathlib import Path

import pytest

from deploy.setup import environment
from deploy.setup.environment import Extent, is_ready, write_programs


@pytest.fixture
def environment_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environment, "ENVIRONMENT", tmp_path)
    return tmp_path


def test_python_environment_without_a_stamp_file_is_not_ready(environment_folder: Path) -> None:
    assert not is_ready(Extent.BASE)


def test_python_environment_of_a_node_is_ready_for_the_base_set_up_and_a_base_environment_not_for_a_node(
    environment_folder: Path,
) -> None:
    (environment_folder / "complete").write_text(Extent.NODE.key())
    assert is_ready(Extent.BASE)
    (environment_folder / "complete").write_text(Extent.BASE.key())
    assert not is_ready(Extent.NODE)


def test_python_environment_is_not_ready_after_the_lock_files_change(
    environment_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (environment_folder / "complete").write_text(Extent.BASE.key())
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "base.lock").write_text("other==1\n")
    (locks / "node.lock").write_text("other==1\n")
    monkeypatch.setattr(environment, "LOCKS", locks)
    assert not is_ready(Extent.BASE)


def test_missing_or_outdated_command_scripts_of_a_python_environment_are_written(
    environment_folder: Path,
) -> None:
    programs = environment_folder / "bin"
    programs.mkdir()
    (programs / "sliceplane-server").write_text("old")
    write_programs()
    assert {path.name for path in programs.iterdir()} == {
        "sliceplane",
        "sliceplane-agent",
        "sliceplane-server",
    }
    script = programs / "sliceplane-server"
    assert "from control_plane.__main__ import main" in script.read_text()
    assert os.access(script, os.X_OK)


def test_up_to_date_command_scripts_of_a_python_environment_are_not_written_again(
    environment_folder: Path,
) -> None:
    (environment_folder / "bin").mkdir()
    write_programs()
    before = [path.stat().st_mtime_ns for path in sorted((environment_folder / "bin").iterdir())]
    write_programs()
    assert [path.stat().st_mtime_ns for path in sorted((environment_folder / "bin").iterdir())] == before
