"""`sliceplane`, the command-line client of the REST API. It shares no code with the server.

Ctrl-C ends the client with exit code 130 and without a traceback, also while modules are still being imported.
"""

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    # The parent process may have set SIGINT to be ignored, as a shell does for background jobs; keep that.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _end_at_once)
    from control_plane.cli.program import program

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        program(prog_name="sliceplane")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        if interruptible:
            signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    # An exception would print a traceback during an import or at interpreter exit, or be lost in a callback.
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
