"""Ctrl-C from a program's first import of ours: one line and 130, where Python would show a traceback of its imports.

It holds until a program that has something to undo listens for itself. Import this before anything that takes time.
"""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code, as a shell has it."""


def end_at_once() -> None:
    """From now on, a Ctrl-C ends this process there and then."""
    _listen(_end)


def raise_interrupts() -> None:
    """From now on, a Ctrl-C raises KeyboardInterrupt, for whoever has something to undo."""
    _listen(signal.default_int_handler)


def _listen(handler: Callable[[int, FrameType | None], object]) -> None:
    # Ignored where whoever started us wants it so: a shell does for what it runs in the background.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    # An exception would be lost in a callback, or show as a traceback once nobody is left to catch it.
    os.write(2, b"\nInterrupted.\n")
    os._exit(INTERRUPTED)
