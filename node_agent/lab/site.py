"""The upstream network of a lab: a bridge, the gateway, and servers that represent hosts outside the lab.

The site runs in separate namespaces, so it does not affect the machine. On the gateway's address it echoes TCP and UDP
on port 7 (RFC 862), and an HTTP server on port 80 returns the source address of the client, which tests of address
translation compare. The uplink of each node is connected to the link `n<index>` of the site; its frames are captured on
that link.
"""

import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from node_agent.lab.netlink import index_of, open_links
from node_agent.lab.supervisor import Supervisor, reserve_stdout

if TYPE_CHECKING:
    from pyroute2 import IPRoute

BRIDGE: Final = "upstream"
BRIDGE_MAC: Final = "02:53:4c:41:42:01"
"""Locally administered MAC of both bridges of a lab. Without it, the kernel could change the MAC of a bridge when a
port is added or removed: after the start or reboot of one node, the other nodes would send to the old MAC until their
ARP entries expire.
"""
PORT_PREFIX: Final = "n"
ECHO_PORT: Final = 7
HTTP_PORT: Final = 80


class SiteConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of a lab's site. `gateway` is the address of the upstream router with its prefix length."""

    folder: str
    gateway: str


class _EchoStream(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while received := self.request.recv(65536):
            self.request.sendall(received)


class _EchoDatagram(socketserver.DatagramRequestHandler):
    def handle(self) -> None:
        self.wfile.write(self.rfile.read())


class _ClientAddress(BaseHTTPRequestHandler):
    """HTTP handler that responds to every GET with the source address and port of the request."""

    def do_GET(self) -> None:
        host, port = self.client_address[:2]
        body = msgspec.json.encode({"source": host, "port": port})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _TcpEcho(socketserver.ThreadingTCPServer):
    daemon_threads = True


def main() -> None:
    event_output = reserve_stdout()
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SiteConfig)
    address, _, length = config.gateway.partition("/")
    with open_links() as links:
        _make_bridge(links, address, int(length))
    for server in (
        _TcpEcho((address, ECHO_PORT), _EchoStream),
        socketserver.ThreadingUDPServer((address, ECHO_PORT), _EchoDatagram),
        ThreadingHTTPServer((address, HTTP_PORT), _ClientAddress),
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    Supervisor(event_output, Path(config.folder), (), _attach_ports).run()


def _make_bridge(links: "IPRoute", address: str, length: int) -> None:
    links.link("set", index=index_of(links, "lo"), state="up")
    links.link("add", ifname=BRIDGE, kind="bridge", address=BRIDGE_MAC)
    index = index_of(links, BRIDGE)
    links.addr("add", index=index, address=address, prefixlen=length)
    links.link("set", index=index, state="up")


def _attach_ports() -> None:
    with open_links() as links:
        bridge = index_of(links, BRIDGE)
        for link in links.get_links():
            if link.get_attr("IFLA_IFNAME").startswith(PORT_PREFIX):
                links.link("set", index=link["index"], master=bridge, state="up")


if __name__ == "__main__":
    main()
