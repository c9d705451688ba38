"""Process that stops during the swap of a rebuilt read model table: `python -m tests.projections.stopped_swap`, with
the DSN on standard input.

It takes all locks of the first half of the swap, prints `holds` and stops itself by SIGSTOP. After SIGCONT it prints
the outcome of the swap.
"""

import os
import signal
import sys

import psycopg


def main() -> None:
    with psycopg.connect(sys.stdin.read()) as conn:
        conn.execute("select ledger.begin_swap(array['slot'])")
        print("holds", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            conn.execute("select ledger.end_swap(array['slot'])")
            conn.commit()
        except psycopg.Error as error:
            print(type(error).__name__, flush=True)
        else:
            print("swapped", flush=True)


if __name__ == "__main__":
    main()
