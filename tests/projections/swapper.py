"""Somebody who goes no further in the middle of a swap: `python -m tests.projections.swapper`, the DSN on standard
input.

It has taken all locks of the first half, says so, and is stopped as by SIGSTOP. Continued, it says what became of it.
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
