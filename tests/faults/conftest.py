"""One running Sliceplane with real lab nodes for the faults of a module; each test gives its slices back."""

from collections.abc import Iterator

import pytest

from tests.faults.embedded import Embedded, start, stop
from tests.servers.postgres import server_folder


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with server_folder() as state:
        running = start(state)
        try:
            yield running
        finally:
            stop(running)
