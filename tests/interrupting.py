"""A Ctrl-C that comes at an exact moment of a program's start, without a clock."""

from pathlib import Path


def interrupting(module: Path) -> None:
    """Writes a module whose import is the moment: it sends SIGINT as a terminal does, to the whole process group."""
    module.write_text("import os, signal\nos.killpg(0, signal.SIGINT)\n")
