"""A program on a terminal of its own, as wide as a test likes."""

import os
import pty
import re
import subprocess


def on_a_terminal(*words: str, columns: int = 160) -> tuple[int, str]:
    """The exit code of a program, and all that its terminal was sent."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    # The terminal answers EIO once its last writer has gone (pty(7)).
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:
        pass
    os.close(ours)
    return process.wait(20), shown.decode()


def plain(shown: str) -> str:
    """The same without colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
