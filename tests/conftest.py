"""What all tests share: servers, each of them real and started when the first test asks for it; and a Ctrl-C that is
heard.
"""

import signal

pytest_plugins = [
    "tests.plugins.tally",
    "tests.servers.postgres",
    "tests.servers.redis",
    "tests.servers.plane",
    "tests.servers.lab",
]


def pytest_configure() -> None:
    """A shell has what it starts with `&` ignore Ctrl-C, and so would every program here that is sent one."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
