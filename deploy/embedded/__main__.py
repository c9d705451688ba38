"""Entry point of `./dev up`, `./dev down` and `./dev reset`. It handles Ctrl-C before it imports the program."""

import sys

from deploy.setup.interrupts import end_at_once


def main() -> int:
    end_at_once()
    from deploy.embedded.program import main as program

    return program()


if __name__ == "__main__":
    sys.exit(main())
