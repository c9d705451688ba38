"""Run a program on a pseudo-terminal of a given width."""

import os
import pty
import re
import subprocess


def run_on_terminal(*words: str, columns: int = 160, typed: tuple[str, str] | None = None) -> tuple[int, str]:
    """Run a program on a pseudo-terminal. Return its exit code and everything that it wrote to the terminal.

    `typed` is a prompt and the input to type when the program has written this prompt.
    """
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    environment.pop("NO_COLOR", None)
    # In a session of its own, the pseudo-terminal becomes the controlling terminal: /dev/tty.
    process = subprocess.Popen(
        ("setsid", "--ctty", "--wait", *words) if typed else words,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    )
    os.close(terminal)
    shown = b""
    # Reading returns EIO after the last writer has closed the terminal (pty(7)).
    try:
        while part := os.read(controller, 4096):
            shown += part
            if typed and typed[0].encode() in shown:
                os.write(controller, typed[1].encode())
                typed = None
    except OSError:
        pass
    os.close(controller)
    return process.wait(20), shown.decode()


def without_escapes(shown: str) -> str:
    """Return terminal output without colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
