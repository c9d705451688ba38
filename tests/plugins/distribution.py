"""Pytest plugin that distributes tests to workers for `--dist loadfile`. All tests of a file run in one worker, because
they share servers. All tests of a folder with fixtures of the scope `package` run in one worker too, because they share
a complete system, and so do all tests on the packaged PostgreSQL, because each change of the server starts another one.

In a new clone, pytest compiles each test module with its assertions rewritten. Each worker collects all modules in the
same order, so that all workers would compile every module at the same time. Therefore each one first imports a
different part, and the others then find its compiled files.
"""

import importlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

ON_PACKAGED_POSTGRES: Final = "packaged-postgres"
"""Part of the ids of tests that run on the packaged PostgreSQL too (`--postgres both`), and the name of their group."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> "FolderScheduling | None":
    """Return the xdist scheduler for `--dist loadfile`. For other values of this option, xdist chooses
    the scheduler.
    """
    return FolderScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import this worker's part of the test modules, if the run has workers and selects all tests."""
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    if not worker or [Path(each).name for each in session.config.args] != session.config.getini("testpaths"):
        return
    number, workers = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    root = session.config.rootpath
    files = sorted(
        file for path in session.config.getini("testpaths") for file in (root / path).rglob("test_*.py")
    )
    for file in files[number::workers]:
        # Collecting the module reports the error, or skips its tests.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


class FolderScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Scheduler that assigns test files to workers, and complete folders if the tests of the folder share a system."""

    def schedule(self) -> None:
        """Assign the tests to workers. Folders come first, then files with tests marked as slow, so that all workers
        end at about the same time. If the tests are in random order, keep this order.
        """
        super().schedule()
        if not self.config.option.loadscopereorder:
            return
        slow = [unit for unit in self.workqueue if unit.endswith(".py") and self._is_slow(unit)]
        folders = [unit for unit in self.workqueue if not unit.endswith(".py")]
        for unit in (*reversed(slow), *folders):
            self.workqueue.move_to_end(unit, last=False)

    def _is_slow(self, file: str) -> bool:
        return "mark.slow" in (self.config.rootpath / file).read_text()

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid, self.config.rootpath)


def group_of(test: str, root: Path) -> str:
    """Return the path of a test's file, or of its folder if the tests of that folder share a system. For a test on the
    packaged PostgreSQL, return `ON_PACKAGED_POSTGRES`.
    """
    path, _, name = test.partition("::")
    if ON_PACKAGED_POSTGRES in name:
        return ON_PACKAGED_POSTGRES
    folder = path.rpartition("/")[0]
    return folder if _shares_system(root / folder) else path


@cache
def _shares_system(folder: Path) -> bool:
    """Return whether the folder's `conftest.py` defines a fixture of the scope `package`."""
    conftest = folder / "conftest.py"
    return conftest.exists() and 'scope="package"' in conftest.read_text()
