"""Fixture: a running Sliceplane with a simulated node. All tests of this folder share it."""

from collections.abc import Iterator

import pytest

from tests.faults.system import System, running_system


@pytest.fixture(scope="package")
def system() -> Iterator[System]:
    with running_system() as running:
        yield running
