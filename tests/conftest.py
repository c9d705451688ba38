"""Pytest plugins and defaults of all tests: real servers, each started for the first test that needs it; temporary
folders in memory; the default handling of Ctrl-C.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Final

import pytest

from deploy.embedded.signing_key import ensure_personal_key
from events.ledger.personal import MasterKey
from events.ledger.project_keys import use_master_key

pytest_plugins = [
    "tests.plugins.distribution",
    "tests.plugins.durations",
    "tests.plugins.leftovers",
    "tests.plugins.affected",
    "tests.plugins.random_order",
    "tests.plugins.tally",
    "tests.plugins.rotation",
    "tests.servers.postgres",
    "tests.servers.redis",
    "tests.servers.plane",
    "tests.servers.emptied_plane",
    "tests.servers.program_copies",
    "tests.servers.lab",
    "tests.servers.chromium",
    "tests.servers.oidc_provider",
]

_MEMORY: Final = Path("/dev/shm")
_NEEDED_BYTES: Final = 4 * 2**30
"""Free memory that temporary folders in /dev/shm require. Those of a complete run need less than half a gigabyte; the
rest is for other programs.
"""

# To copy a database's files on a disk takes ten times the processor time. Workers and programs inherit the variable.
if "TMPDIR" not in os.environ and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _NEEDED_BYTES:
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None


# Tests poll, and share one API key and one address, faster than any limit of requests permits. Workers and programs
# inherit the variables.
for _name in ("REQUESTS", "PROJECT_REQUESTS", "UNAUTHENTICATED"):
    os.environ.setdefault(f"SLICEPLANE_{_name}_PER_MINUTE", "0")


def _use_personal_key() -> None:
    """Set the master key of personal data for this process, its workers and their programs: one key for all of them, so
    that they can share databases.
    """
    if "SLICEPLANE_PERSONAL_KEY_FILE" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="sp-key-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["SLICEPLANE_PERSONAL_KEY_FILE"] = str(ensure_personal_key(folder / "personal-key"))
    use_master_key(MasterKey.of_file(Path(os.environ["SLICEPLANE_PERSONAL_KEY_FILE"])))


def pytest_configure() -> None:
    """Restore the default handling of Ctrl-C (SIGINT). A shell ignores SIGINT in background jobs, and the test process
    inherits this. Let workers and programs store bytecode files: container images often disable them, and then each
    program compiles all its modules again.
    """
    _use_personal_key()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Until the first test, nearly all new objects are needed until the end: imported modules and collected tests.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Exclude imported modules and collected tests from garbage collection and collect less often. Garbage collection
    took a tenth of the time of a test run, and a quarter of that of the collection of tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()
