"""Entry point of `sliceplane-server`: it switches the garbage collector off while the programs import their modules.

Imports create only objects that remain in memory. Collections during the imports free nothing, and together they take a
sixth of a program's start time.
"""

import gc
import sys


def main() -> int:
    """Run the program that the arguments name and return its exit code, as `control_plane.server.main` describes."""
    gc.disable()
    from control_plane.server import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
