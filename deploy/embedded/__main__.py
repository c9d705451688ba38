"""The entry of `./dev up` and `./dev down`, which hears a Ctrl-C before the program is imported."""

import sys

from deploy.setup.interrupts import end_at_once


def main() -> int:
    end_at_once()
    from deploy.embedded.program import main as program

    return program()


if __name__ == "__main__":
    sys.exit(main())
