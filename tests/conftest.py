"""The servers of the tests, for all of them: each is real, and starts when the first test asks for it."""

pytest_plugins = [
    "tests.plugins.tally",
    "tests.servers.postgres",
    "tests.servers.redis",
    "tests.servers.plane",
    "tests.servers.lab",
]
