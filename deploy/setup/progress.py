"""Progress display of a long step: on a terminal one line with a seconds counter, elsewhere a line every ten seconds.

A thread that runs as long as the step writes the lines. Meanwhile nothing else writes to the terminal: the programs of
a step write to the set-up's log file.
"""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_SECONDS = 0.1
_LINE_SECONDS = 10.0
_CLEAR_LINE = "\r\x1b[2K"


@contextmanager
def step(what: str, progress: Callable[[], str] | None = None) -> Iterator[None]:
    """Show the step `what` while the `with` block runs, then its duration. While the step runs, the text that
    `progress` returns is shown behind its name.
    """
    began = time.monotonic()
    drawing = _spinner if sys.stderr.isatty() else _plain_lines
    with drawing(lambda: f"{what}: {progress()}" if progress else what, began):
        yield
    _line(f" ok  {what} ({time.monotonic() - began:.1f} s)\n")


@contextmanager
def _spinner(text: Callable[[], str], began: float) -> Iterator[None]:
    frames = itertools.cycle(_FRAMES)

    def draw() -> None:
        _line(f"{_CLEAR_LINE} {next(frames)}   {text()} ({time.monotonic() - began:.0f} s)")

    try:
        with _repeated(draw, _FRAME_SECONDS):
            yield
    finally:
        _line(_CLEAR_LINE)


@contextmanager
def _plain_lines(text: Callable[[], str], began: float) -> Iterator[None]:
    def draw() -> None:
        _line(f"... {text()} ({time.monotonic() - began:.0f} s)\n")

    _line(f"... {text()}\n")
    with _repeated(draw, _LINE_SECONDS):
        yield


@contextmanager
def _repeated(draw: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `draw` in a thread every `seconds` while the `with` block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            draw()

    drawer = threading.Thread(target=repeat, daemon=True)
    drawer.start()
    try:
        yield
    finally:
        ended.set()
        drawer.join()


def _line(text: str) -> None:
    # A terminal in the C locale cannot show braille; the set-up must not fail because of the spinner.
    encoding = sys.stderr.encoding or "ascii"
    sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()
