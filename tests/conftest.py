"""Plugins of all tests: real servers, each started for the first test that needs it, and the default Ctrl-C handler."""

import gc
import signal

pytest_plugins = [
    "tests.plugins.distribution",
    "tests.plugins.durations",
    "tests.plugins.affected",
    "tests.plugins.random_order",
    "tests.plugins.tally",
    "tests.servers.postgres",
    "tests.servers.redis",
    "tests.servers.plane",
    "tests.servers.lab",
]


def pytest_configure() -> None:
    """Restore the default handling of Ctrl-C. A shell ignores SIGINT for background jobs, and programs inherit this."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Make the garbage collector skip modules and collected tests and run less often: it used a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
