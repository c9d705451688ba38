"""The files of this repository that git tracks, or that are new and not ignored."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


@cache
def repository_files() -> tuple[Path, ...]:
    """Return the absolute path of every existing file of the repository that git tracks or would add."""
    # Git must accept this repository even if another user owns its folder.
    command = [
        "git",
        "-c",
        f"safe.directory={ROOT}",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / name for name in listed.split("\0") if name)
    return tuple(sorted({path for path in paths if path.is_file()}))


def python_files(*, below: str = "") -> list[Path]:
    """Return the Python files of the repository that are below the folder `below`, by default all."""
    return [path for path in repository_files() if path.suffix == ".py" and path.is_relative_to(ROOT / below)]


def text_lines(path: Path) -> list[str]:
    """Return the lines of a text file, or an empty list for a binary file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


def place(path: Path, line: int) -> str:
    """Return `FILE:LINE`, with the file relative to the repository, for the report of a finding."""
    return f"{path.relative_to(ROOT)}:{line}"
