"""Program that appends to the ledger and never commits: `python -m tests.faults.appender hang | stop`, with the DSN on
standard input.

It appends an event and prints the event's position. Then, with its transaction open, it idles permanently (`hang`) or
stops itself as by SIGSTOP (`stop`).
"""

import asyncio
import os
import signal
import sys

import psycopg

from events.ledger.append import append
from tests.ledger.given import because, on


async def main(how: str) -> None:
    conn = await psycopg.AsyncConnection.connect(sys.stdin.read())
    (recorded,) = await append(conn, [on(f"appender-{os.getpid()}", 0)], because())
    print(recorded.position, flush=True)
    match how:
        case "hang":
            await asyncio.Event().wait()
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            raise SystemExit(f"not known: {how}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
