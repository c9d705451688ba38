"""Disabling of core dumps of the programs, because the memory of a program contains secrets: keys, passwords and
tokens.
"""

import resource
from contextlib import suppress


def disable_core_dumps() -> None:
    """Set the size limit of core dumps to zero, for this process and the processes that it starts (getrlimit(2))."""
    with suppress(
        OSError, ValueError
    ):  # a sandbox may forbid any change of limits, and the default is mostly zero
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
