"""One lab for a whole test session: two nodes without agents, and the guest's image, made once and kept.

Tests share the nodes and leave them as they found them; one that kills a node makes a lab of its own.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.lab.guest import GuestImage, ensure_guest
from node_agent.lab.lab import Lab


def kept_folder() -> Path:
    """Where what is slow to make survives test sessions: the guest's image, libvirt's findings."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "sliceplane" / "tests"


_labs = itertools.count()


def run_id() -> str:
    """One of its own for every lab of every session that runs now; a run id has room for eight characters."""
    return f"t{os.getpid() % 100_000:05d}{next(_labs)}"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(run_id(), tmp_path_factory.mktemp("lab"), ["lab-a", "lab-b"], kept_folder() / "libvirt") as lab:
        yield lab


@pytest.fixture(scope="session")
def guest_image() -> GuestImage:
    return ensure_guest(kept_folder() / "guest", print)
