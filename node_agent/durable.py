"""Files that are either as they were or as they should be, whole, whenever the process or the host dies.

New content goes to a neighbour, is flushed, and takes the name by a rename; flushing the folder makes the rename
last (rename(2), fsync(2)). A crash leaves at most a neighbour that the next write replaces. One writer a file.
"""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace the content of `path` in one step, readable by the owner alone (0600).

    Without `durable` the host's death may bring the old content back, whole. Raises `OSError`.
    """
    neighbour = path.with_name(f"{path.name}.new")
    descriptor = os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        # Always: a name that is moved onto what was never flushed may come back empty.
        os.fsync(file.fileno())
    neighbour.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names that were added to or taken from `folder` last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_folder(folder: Path) -> Path:
    """Make `folder` if it is missing, for others to pass through and not to list (0711)."""
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    return folder


def private_folder(folder: Path) -> Path:
    """Make `folder` if it is missing, open to its owner alone (0700)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder
