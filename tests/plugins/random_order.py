"""Pytest plugin of `./dev test --random-order [SEED]`: it runs the files in random order, and the tests of each file in
random order.

Tests of a file, or of a folder with a shared system, stay together. Tests with the same parameter of a shared fixture
also stay together, in the declared order of the parameters, so that each server and lab starts as often as in the usual
order. The same seed produces the same order of the same tests.
"""

import random
from collections import defaultdict
from typing import Any, Final

import pytest
from _pytest.scope import Scope

from tests.plugins.distribution import group_of

_SEED: Final = "random_order"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--random-order",
        nargs="?",
        const="",
        metavar="SEED",
        help="run files, and the tests of each file, in random order; SEED repeats the order of another run",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("random_order") is None:
        return
    # All workers must collect in the same order, so they use the seed of the process that started them.
    of_run = getattr(config, "workerinput", {}).get(_SEED)
    config.option.random_order = of_run or config.option.random_order or str(random.randrange(10**6))
    # Otherwise xdist starts files with many tests first.
    config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the seed of the random order to a worker process of xdist."""
    node.workerinput[_SEED] = node.config.getoption("random_order")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("random_order")
    return None if seed is None else f"random order: --random-order={seed} repeats it"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    # With -q there is no header.
    if header := pytest_report_header(config):
        terminalreporter.line(header)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("random_order")
    if seed is None:
        return
    chance = random.Random(seed)
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[group_of(item.nodeid, config.rootpath)].append(item)
    names = sorted(groups)
    chance.shuffle(names)
    for name in names:
        chance.shuffle(groups[name])
        groups[name].sort(key=_shared_parameters)
    items[:] = [item for name in names for item in groups[name]]


def _shared_parameters(item: pytest.Item) -> list[tuple[str, int]]:
    """Return the parameters that a test passes to shared fixtures. Tests run in the declared order of
    these parameters.
    """
    called = getattr(item, "callspec", None)
    if called is None:
        return []
    return sorted(
        (name, index)
        for name, index in called.indices.items()
        if called._arg2scope[name] is not Scope.Function
    )
