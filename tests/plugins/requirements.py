"""What a test needs of the machine, and what happens where it is missing.

A test marked `node` needs root and Debian's node packages; a fixture that finds its server missing calls
`missing_server`. Elsewhere both skip with the reason. With CI=true a missing server is a failure, since a skip there
would read as a pass; being an ordinary user is no missing server. Tests of a clean machine run when asked for.
"""

import os
from typing import NoReturn

import pytest

from deploy.setup.debian import missing_packages

_ASKED_FOR = "clean_machine"


def missing_server(reason: str) -> NoReturn:
    """Ends the running test: skipped with `reason`, or failed with it where CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI has no {reason}", pytrace=False)
    pytest.skip(f"needs {reason}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _ASKED_FOR in (config.option.markexpr or "") or any(_ASKED_FOR in given for given in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker(_ASKED_FOR)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("node") is None:
        return
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes network namespaces and nodes in them")
    missing = missing_packages()
    if missing:
        missing_server(f"Debian packages {', '.join(missing)} (`./dev up` as root installs them)")
