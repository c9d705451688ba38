"""Fixtures: a scripted control plane, and both clients connected to it."""

from collections.abc import Iterator

import pytest

from tests.cli.control_plane import ScriptedPlane, running_plane
from tests.client.clients import AnyClient, client_of


@pytest.fixture
def plane() -> Iterator[ScriptedPlane]:
    with running_plane() as plane:
        yield plane


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, plane: ScriptedPlane) -> Iterator[AnyClient]:
    with client_of(request.param, plane.url, "sp_test") as client:
        yield client
