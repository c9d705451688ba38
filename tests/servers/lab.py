"""Session fixtures of the lab: two lab nodes without agents, and the guest image, which is kept between sessions.

Tests share the nodes and restore their state. A test that kills a node creates its own lab.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.lab.guest import GuestImage, ensure_guest
from node_agent.lab.lab import Lab


def kept_folder() -> Path:
    """Return the folder that keeps results of slow computations between test sessions: the guest image and libvirt's
    capabilities.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "sliceplane" / "tests"


_labs = itertools.count()


def run_id() -> str:
    """Return a run id for a lab that no other lab of a running test session uses. It has at most eight characters."""
    return f"t{os.getpid() % 100_000:05d}{next(_labs)}"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(run_id(), tmp_path_factory.mktemp("lab"), ["lab-a", "lab-b"], kept_folder() / "libvirt") as lab:
        yield lab


@pytest.fixture(scope="session")
def guest_image() -> GuestImage:
    return ensure_guest(kept_folder() / "guest", print)
