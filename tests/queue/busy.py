"""A node that is within its rights and knows no measure, in a process of its own: it asks for all it may ask for,
reads the answer, and asks again.

`python -m tests.queue.busy HOST PORT USERNAME NAMESPACE`, its password on standard input. It ends with that.
"""

import socket
import sys
import threading
from typing import Final

from tasks.broker import QueueAddress
from tasks.scripts import BEAT, FETCH, PUT_BACK, SETTLE, QueueKeys, Script
from tests.queue.bare import words

_MANY: Final = 256
_READ: Final = 1 << 20
_LAST: Final = b"+PONG\r\n"


def wants(keys: QueueKeys) -> list[bytes]:
    """One for each connection: as much of its queue as a reply holds, for one worker, for another and for the first
    again, and all else that it may run, many at a time.
    """

    def run(script: Script, *said: object) -> bytes:
        return words("EVALSHA", script.sha, 5, *keys.all(), *said)

    whole = run(FETCH, "greedy", _MANY)
    others = (
        run(BEAT, "greedy"),
        run(FETCH, "another", 1),
        run(SETTLE, "another", "no order"),
        run(PUT_BACK, "another", *["no order"] * _MANY),
        words("HGET", keys.held, "no order"),
    )
    return [whole, run(FETCH, "greedy too", _MANY), whole, b"".join(others) * 20]


def ask_without_end(address: QueueAddress, wanted: bytes) -> None:
    with socket.create_connection((address.host, address.port)) as line:
        line.sendall(words("AUTH", address.username, address.password))
        into, end = bytearray(_READ), b""
        while True:
            line.sendall(wanted + words("PING"))
            while not end.endswith(_LAST):
                got = line.recv_into(into)
                assert got, "Redis hung up"
                end = (end + into[max(0, got - len(_LAST)) : got])[-len(_LAST) :]
            end = b""


def main() -> None:
    host, port, username, namespace = sys.argv[1:]
    address = QueueAddress(host, int(port), username, sys.stdin.readline().strip(), namespace)
    for wanted in wants(address.keys):
        threading.Thread(target=ask_without_end, args=(address, wanted), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
