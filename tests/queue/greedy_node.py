"""Process of a greedy node that stays within its Redis permissions: it requests as much as it may, reads the reply and
repeats.

`python -m tests.queue.greedy_node HOST PORT USERNAME NAMESPACE`, with the node's Redis password on standard input. The
process ends when standard input is closed.
"""

import socket
import sys
import threading
from typing import Final

from node_agent.transport.broker import QueueAddress
from tasks.scripts import BEAT, FETCH, REQUEUE, SETTLE, QueueKeys, Script
from tests.queue.redis_protocol import words

_FETCH_COUNT: Final = 256
_BUFFER_BYTES: Final = 1 << 20
_LAST_REPLY: Final = b"+PONG\r\n"


def commands(keys: QueueKeys) -> list[bytes]:
    """Return the Redis commands that each connection of the greedy node repeats.

    Three connections fetch as much of the queue as one reply holds: the first and the third for one worker, the second
    for another worker. The fourth connection pipelines every other command that a node may run.
    """

    def run(script: Script, *arguments: object) -> bytes:
        return words("EVALSHA", script.sha, 5, *keys.all(), *arguments)

    whole = run(FETCH, "greedy", _FETCH_COUNT)
    others = (
        run(BEAT, "greedy"),
        run(FETCH, "another", 1),
        run(SETTLE, "another", "no order"),
        run(REQUEUE, "another", *["no order"] * _FETCH_COUNT),
        words("HGET", keys.held, "no order"),
    )
    return [whole, run(FETCH, "greedy too", _FETCH_COUNT), whole, b"".join(others) * 20]


def send_repeatedly(address: QueueAddress, command: bytes) -> None:
    with socket.create_connection((address.host, address.port)) as line:
        line.sendall(words("AUTH", address.username, address.password))
        buffer, end = bytearray(_BUFFER_BYTES), b""
        while True:
            line.sendall(command + words("PING"))
            while not end.endswith(_LAST_REPLY):
                got = line.recv_into(buffer)
                assert got, "Redis closed the connection"
                end = (end + buffer[max(0, got - len(_LAST_REPLY)) : got])[-len(_LAST_REPLY) :]
            end = b""


def main() -> None:
    host, port, username, namespace = sys.argv[1:]
    address = QueueAddress(host, int(port), username, sys.stdin.readline().strip(), namespace)
    for command in commands(address.keys):
        threading.Thread(target=send_repeatedly, args=(address, command), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
