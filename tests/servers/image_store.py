"""A store of disk images: an HTTPS server that sends files, or a part of one (RFC 9110, Range), and can fail."""

import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

from deploy.embedded.certificates import ensure
from tasks.orders import RootDisk

_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass
class ImageStore:
    """A running store. `images` are the contents by digest, `served` the numbers of bytes that each response sent."""

    url: str
    ca_file: Path
    images: dict[str, bytes] = field(default_factory=dict)
    served: list[int] = field(default_factory=list)
    cut_after: int | None = None
    """Number of bytes after which the store closes the connection of each response; None: never."""
    status: int | None = None
    """Status with which the store refuses every request; None: it does not."""
    supports_ranges: bool = True

    def add(self, content: bytes, *, format_: Literal["qcow2", "raw"] = "raw", size_gib: int = 1) -> RootDisk:
        """Store an image and return a root disk with this image."""
        disk = root_disk(content, format_=format_, size_gib=size_gib)
        self.images[disk.digest.removeprefix("sha256:")] = content
        return disk


def root_disk(content: bytes, *, format_: Literal["qcow2", "raw"] = "raw", size_gib: int = 1) -> RootDisk:
    """Return a root disk with an image of this content."""
    return RootDisk(
        digest=f"sha256:{sha256(content).hexdigest()}",
        format=format_,
        image_bytes=len(content),
        size_gib=size_gib,
        firmware="bios",
    )


@contextmanager
def image_store(folder: Path, address: str = "127.0.0.1") -> Iterator[ImageStore]:
    """Run a store at an address of this machine, with a certificate of a CA of its own below `folder`."""
    certificates = ensure(folder, [address], datetime.now(UTC))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, store)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((address, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    store = ImageStore(f"https://{address}:{server.server_address[1]}", certificates.ca)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(request: BaseHTTPRequestHandler, store: ImageStore) -> None:
    content = store.images.get(request.path.removeprefix("/sha256/"))
    if store.status is not None or content is None:
        request.send_error(store.status or 404)
        return
    asked = _RANGE.fullmatch(request.headers.get("Range", ""))
    start = int(asked[1]) if asked and store.supports_ranges else 0
    part = content[start:]
    request.send_response(206 if start else 200)
    request.send_header("Content-Length", str(len(part)))
    request.end_headers()
    sent = part[: store.cut_after]
    store.served.append(len(sent))
    request.wfile.write(sent)
    request.close_connection = True
