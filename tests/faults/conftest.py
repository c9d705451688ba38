"""A running Sliceplane with real lab nodes for the faults of a module; each test gives its slices back."""

from collections.abc import Iterator

import pytest

from tests.faults.embedded import Embedded, start, stop
from tests.faults.programs import REPLICAS, Lab
from tests.servers.postgres import server_folder


@pytest.fixture(scope="module")
def embedded() -> Iterator[Embedded]:
    with server_folder() as state:
        running = start(state)
        try:
            yield running
        finally:
            stop(running)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """With two replicas of every program of the control plane."""
    with server_folder() as state:
        running = start(state, replicas=REPLICAS)
        try:
            yield Lab(running.layout, running.stack, running.api.key, nodes=running.nodes)
        finally:
            stop(running)
