"""Pytest plugin for requirements of tests on the machine, and the reaction to a missing requirement.

A test marked `node` needs root and Debian's node packages. A fixture calls `missing_server` if its server is not
installed. In both cases the test is skipped with the reason. With CI=true, a missing server or package fails the test,
because a skip would look like a pass; a test that needs root is still skipped for another user. Clean machine tests run
only on request, and tests marked `docker` only where a Docker engine responds.
"""

import os
from typing import NoReturn

import pytest

from deploy.setup.debian import missing_packages

_ON_REQUEST = "clean_machine"


def missing_server(reason: str) -> NoReturn:
    """Skip the running test because a server is missing, or fail the test if CI=true. The text `reason` names the
    server.
    """
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing in CI: {reason}", pytrace=False)
    pytest.skip(f"needs {reason}")


def _docker_responds() -> bool:
    from tests.servers.container import engine_is_available  # slow to import, and rarely needed

    return engine_is_available()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marks = set()
    if _ON_REQUEST not in (config.option.markexpr or "") and not any(
        _ON_REQUEST in given for given in config.args
    ):
        marks.add(_ON_REQUEST)
    if any(item.get_closest_marker("docker") for item in items) and not _docker_responds():
        marks.add("docker")
    excluded = [item for item in items if any(item.get_closest_marker(mark) for mark in marks)]
    if excluded:
        config.hook.pytest_deselected(items=excluded)
        items[:] = [item for item in items if item not in excluded]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("node") is None:
        return
    if os.geteuid() != 0:
        pytest.skip("needs root: the test creates network namespaces and nodes in them")
    missing = missing_packages()
    if missing:
        missing_server(f"Debian packages {', '.join(missing)} (`./dev up` as root installs them)")
