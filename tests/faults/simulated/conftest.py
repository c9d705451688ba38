"""Fixture of the fault tests with simulated nodes: a running Sliceplane with a simulated node, which all tests of this
folder share.
"""

from collections.abc import Iterator

import pytest

from tests.faults.system import System, running_system


@pytest.fixture(scope="package")
def system() -> Iterator[System]:
    with running_system() as running:
        yield running
