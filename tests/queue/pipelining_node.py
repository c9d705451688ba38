"""Process of a hostile node: it sends one Redis command in an endless pipeline and reads every reply.

`python -m tests.queue.pipelining_node HOST PORT USERNAME CONNECTIONS`; the first line of standard input is the node's
Redis password, the second the command (hexadecimal). The process prints a line when it begins to send, and ends when
its standard input is closed.
"""

import socket
import sys
import threading
from contextlib import suppress
from typing import Final

from tests.queue.redis_protocol import words

_BLOCK: Final = 1 << 16


def _send(line: socket.socket, block: bytes) -> None:
    with suppress(OSError):
        while True:
            line.sendall(block)


def _read(line: socket.socket) -> None:
    with suppress(OSError):
        while line.recv(_BLOCK):
            pass


def main() -> None:
    host, port, username, connections = sys.argv[1:]
    password, command = sys.stdin.readline().strip(), bytes.fromhex(sys.stdin.readline().strip())
    block = command * max(1, _BLOCK // len(command))
    for _ in range(int(connections)):
        line = socket.create_connection((host, int(port)), 30)
        line.sendall(words("AUTH", username, password))
        assert line.recv(16) == b"+OK\r\n"
        for target, args in ((_send, (line, block)), (_read, (line,))):
            threading.Thread(target=target, args=args, daemon=True).start()
    print("sending", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
