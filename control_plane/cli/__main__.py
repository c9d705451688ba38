"""`sliceplane`, the command line: a client of the REST API that shares no code with the server.

Ctrl-C ends it with 130 and without a traceback, also while its modules are still imported: from when Python itself has
started, and `main` with it.
"""

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    # Ignored where whoever started us wants it so: a shell does for what it runs in the background.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, _end_at_once)
    from control_plane.cli.program import program

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        program(prog_name="sliceplane")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        if heard:
            signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    # An exception would show as a traceback in an import or as the interpreter ends, or be lost in a callback.
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
