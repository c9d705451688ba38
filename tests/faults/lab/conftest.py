"""Fixture of the fault tests on lab nodes: a running Sliceplane with real lab nodes, which all tests of this folder
share.
"""

from collections.abc import Iterator

import pytest

from tests.faults.embedded import running_lab
from tests.faults.programs import Lab


@pytest.fixture(scope="package")
def lab() -> Iterator[Lab]:
    with running_lab() as running:
        yield running
