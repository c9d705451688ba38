"""The version of the control plane and of its command line."""

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    try:
        return version("sliceplane")
    except PackageNotFoundError:
        return "0.1.0+source"  # run from a work tree that was never installed
