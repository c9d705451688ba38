"""What a person sees of a long step: one line that counts seconds on a terminal, plain lines elsewhere.

The line is drawn by a thread that lives as long as its step; nothing else writes to the terminal meanwhile, since
the programs of a step write to the set-up's log.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_SECONDS = 0.1
_CLEAR_LINE = "\r\x1b[2K"


@contextmanager
def step(what: str) -> Iterator[None]:
    """Shows `what` while the body runs, then how long it took and whether it ended well."""
    began = time.monotonic()
    if sys.stderr.isatty():
        with _spinner(what, began):
            yield
    else:
        _line(f"... {what}\n")
        yield
    _line(f" ok  {what} ({time.monotonic() - began:.1f} s)\n")


@contextmanager
def _spinner(what: str, began: float) -> Iterator[None]:
    ended = threading.Event()

    def draw() -> None:
        frame = 0
        while not ended.wait(_FRAME_SECONDS):
            frame += 1
            _line(f"\r {_FRAMES[frame % len(_FRAMES)]}   {what} ({time.monotonic() - began:.0f} s)")

    drawer = threading.Thread(target=draw, daemon=True)
    drawer.start()
    try:
        yield
    finally:
        ended.set()
        drawer.join()
        _line(_CLEAR_LINE)


def _line(text: str) -> None:
    # A terminal in the C locale has no braille; a set-up must not fail over its ornament.
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()
