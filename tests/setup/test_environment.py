"""Which environment counts as ready. Making one is shown by tests/clean_machine."""

from pathlib import Path

import pytest

from deploy.setup import environment
from deploy.setup.environment import Extent, is_ready


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environment, "ENVIRONMENT", tmp_path)
    return tmp_path


def test_an_environment_without_a_stamp_is_not_ready(made: Path) -> None:
    assert not is_ready(Extent.BASE)


def test_the_larger_extent_is_ready_for_the_smaller_one_and_not_the_reverse(made: Path) -> None:
    (made / "complete").write_text(Extent.NODE.key())
    assert is_ready(Extent.BASE)
    (made / "complete").write_text(Extent.BASE.key())
    assert not is_ready(Extent.NODE)


def test_changed_locks_are_another_environment(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made / "complete").write_text(Extent.BASE.key())
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "base.lock").write_text("other==1\n")
    (locks / "node.lock").write_text("other==1\n")
    monkeypatch.setattr(environment, "LOCKS", locks)
    assert not is_ready(Extent.BASE)
