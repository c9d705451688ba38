"""`python -m tests.agent.pinger ADDRESS SECONDS`: ping every 10 ms; print the number of sent and of lost pings.

It sends ICMP echo requests (RFC 792) on a raw socket. A ping is lost if it has no answer after two seconds.
"""

import socket
import struct
import sys
import threading
import time
from typing import Final

_INTERVAL_SECONDS: Final = 0.01
_ANSWER_SECONDS: Final = 2.0
_IDENTITY: Final = 0x5C1E
_ECHO, _ANSWER = 8, 0


def main(address: str, seconds: float) -> None:
    icmp = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    icmp.settimeout(0.2)
    answered, stopped = set[int](), threading.Event()

    def listen() -> None:
        while not stopped.is_set():
            try:
                packet = icmp.recv(1500)
            except TimeoutError:
                continue
            kind, _, _, identity, number = struct.unpack("!BBHHH", packet[20:28])
            if (kind, identity) == (_ANSWER, _IDENTITY):
                answered.add(number)

    listener = threading.Thread(target=listen)
    listener.start()
    sent, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        icmp.sendto(_echo(sent), (address, 0))
        sent += 1
        time.sleep(max(0.0, began + sent * _INTERVAL_SECONDS - time.monotonic()))
    deadline = time.monotonic() + _ANSWER_SECONDS
    while len(answered) < sent and time.monotonic() < deadline:
        time.sleep(_INTERVAL_SECONDS)
    stopped.set()
    listener.join()
    sys.stdout.write(f"{sent} {sent - len(answered)}\n")


def _echo(number: int) -> bytes:
    head = struct.pack("!BBHHH", _ECHO, 0, 0, _IDENTITY, number)
    total = sum(struct.unpack("!4H", head))
    folded = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBHHH", _ECHO, 0, ~folded & 0xFFFF, _IDENTITY, number)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
