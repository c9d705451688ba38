"""The files of this repository, as git sees them: tracked, or new and not ignored."""

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file, as an existing absolute path."""
    # A folder that another user cloned is still this repository.
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
    """The Python files, those below a folder when one is given."""
    return [path for path in repository_files() if path.suffix == ".py" and path.is_relative_to(ROOT / below)]


def text_lines(path: Path) -> list[str]:
    """The lines of a text file, none for a binary one."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


def place(path: Path, line: int) -> str:
    """How a finding names its place."""
    return f"{path.relative_to(ROOT)}:{line}"
