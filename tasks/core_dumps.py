"""Core dumps of the programs are disabled, because the memory of a program has secrets: keys, passwords and tokens."""

import resource
from contextlib import suppress


def disable_core_dumps() -> None:
    """Set the limit of the size of core dumps to zero, for this process and those that it starts (getrlimit(2))."""
    with suppress(
        OSError, ValueError
    ):  # a sandbox may forbid any change of limits, and the default is mostly zero
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
