"""The agent's version, as it tells the control plane."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def agent_version() -> str:
    try:
        return version("sliceplane")
    except PackageNotFoundError:
        return "0.1.0+source"  # run from a work tree that was never installed
