"""The version of the control plane and of its command line."""

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """Return the version of the installed release, or a placeholder for a work tree that is not installed."""
    try:
        return version("sliceplane")
    except PackageNotFoundError:
        return "0.1.0+source"
