"""Version of the agent, as reported to the control plane."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def agent_version() -> str:
    """Return the version of the installed Sliceplane package, which is the agent's version."""
    try:
        return version("sliceplane")
    except PackageNotFoundError:
        return "0.1.0+source"  # run from a work tree that was never installed
