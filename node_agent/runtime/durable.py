"""Atomic file replacement: after a crash of the process or the host, a file has either its old or its new content.

New content is written to a temporary file in the same folder, flushed, and renamed to the target; flushing the folder
makes the rename durable (rename(2), fsync(2)). A crash leaves at most a temporary file, which the next write replaces.
Each file has one writer.
"""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace the content of the file `path` atomically; only its owner may read it (0600). Raises `OSError`.

    Without `durable`, a crash of the host may bring the complete old content back.
    """
    temporary = path.with_name(f"{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        # Needed even without `durable`: after a crash, a file that is renamed before it is flushed may be empty.
        os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the creation, renaming and deletion of files in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_folder(folder: Path) -> Path:
    """Create `folder` if it is missing; other users may enter it but not list it (0711)."""
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    return folder


def private_folder(folder: Path) -> Path:
    """Create `folder` if it is missing, accessible only to its owner (0700)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder
