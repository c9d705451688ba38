"""Program in a network namespace of its own: a host of which the routes lead the address of a slice to another machine.

It connects to the SSH port of three addresses as the agent does, and prints what answered: the address of the slice,
that of the other machine, and that of the host itself on the other network. Standard output has a JSON object with the
greeting, or the refusal, for each.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from uuid import UUID

from events.values import Ipv4Address
from node_agent.drivers.machines.socket_console import connect_to_ssh
from node_agent.host.host import ConsoleRefused
from tasks.streams import SSH_PORT
from tests.contract.network.slices import GATEWAY, NETWORK, network

SLICE: Final = network(0)
OTHER: Final = Ipv4Address("10.9.9.10")
OWN: Final = Ipv4Address("10.9.9.1")
_GREETER: Final = """
import socket, sys
server = socket.create_server(("", int(sys.argv[2])))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(sys.argv[1].encode())
    connection.close()
"""


def main() -> None:
    with machine("slice") as guest, machine("other") as other, machine("host", namespace=False):
        connect(NETWORK.bridge, f"{GATEWAY}/24", guest, f"{SLICE.ip}/24")
        connect("uplink0", f"{OWN}/24", other, f"{OTHER}/24")
        inside(other, "address", "add", f"{SLICE.ip}/32", "dev", "eth0")
        ip("route", "add", f"{SLICE.ip}/32", "dev", "uplink0")
        addresses = {"slice": SLICE.ip, "other": OTHER, "own": OWN}
        with ThreadPoolExecutor(len(addresses)) as at_once:
            found = dict(zip(addresses, at_once.map(answer, addresses.values()), strict=True))
    json.dump(found, sys.stdout)


def answer(address: Ipv4Address) -> str:
    """Return the greeting of the machine to which the agent's connection to this address leads, or the refusal."""
    try:
        console = connect_to_ssh(UUID(int=1), replace(SLICE, ip=address))
    except ConsoleRefused as refused:
        return refused.code
    try:
        return console.read().decode()
    finally:
        console.close()


@contextmanager
def machine(name: str, *, namespace: bool = True) -> Iterator[int]:
    """Run a program that sends a name as its greeting on the SSH port, and yield its process id."""
    command = [
        *(("unshare", "--net") if namespace else ()),
        sys.executable,
        "-c",
        _GREETER,
        name,
        str(SSH_PORT),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"listening\n"
            yield program.pid
        finally:
            program.kill()


def connect(link: str, address: str, other: int, other_address: str) -> None:
    """Connect the namespace of this host with that of the machine of process `other`, by a pair of links with these
    addresses.
    """
    ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(other))
    ip("address", "add", address, "dev", link)
    ip("link", "set", link, "up")
    inside(other, "address", "add", other_address, "dev", "eth0")
    inside(other, "link", "set", "eth0", "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def inside(process: int, *words: str) -> None:
    subprocess.run(["nsenter", "--target", str(process), "--net", "ip", *words], check=True)


if __name__ == "__main__":
    ip("link", "set", "lo", "up")
    main()
