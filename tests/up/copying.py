"""`python -m tests.up.copying up [OPTION ...]`: run `./dev up` with programs that are copies of one process
(`tests.servers.program_copies`).

Otherwise it is the same as `python -m deploy.embedded`. A start of the control plane and two agents imports their
modules once instead of in each process, which is most of the processor time of a short run.
"""

import sys

from deploy.setup.interrupts import end_at_once


def main() -> int:
    end_at_once()
    from deploy.embedded.children import Child
    from deploy.embedded.program import main as program
    from tests.servers.program_copies import start_copy

    Child.starter = staticmethod(start_copy)
    return program()


if __name__ == "__main__":
    sys.exit(main())
