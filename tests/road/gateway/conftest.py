"""The SSH gateway that the tests of this folder use unless they need one with other settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.road.conftest import Site
from tests.servers.ssh_gateway import Gateway, gateway_process


@pytest.fixture
def gateway(site: Site, tmp_path: Path) -> Iterator[Gateway]:
    with gateway_process(site.plane, tmp_path) as made:
        yield made
