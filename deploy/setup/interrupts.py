"""Handling of Ctrl-C from the first import on: print one line and exit with 130 instead of an import traceback.

A program that has something to undo installs its own handler later. Import this module before anything that takes long.
"""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit code after SIGINT, as shells define it."""


def end_at_once() -> None:
    """Make Ctrl-C end this process immediately."""
    _set_handler(_exit_immediately)


def raise_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, for code that has something to undo."""
    _set_handler(signal.default_int_handler)


def _set_handler(handler: Callable[[int, FrameType | None], object]) -> None:
    # A shell ignores SIGINT for programs that it runs in the background. Keep that.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def _exit_immediately(_number: int, _frame: FrameType | None) -> None:
    # An exception would be lost inside a callback, or printed as a traceback if no caller catches it.
    os.write(2, b"\nInterrupted.\n")
    os._exit(INTERRUPTED)
