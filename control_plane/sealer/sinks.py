"""Places outside the database to which signed heads are sent, so that a changed database contradicts them.

A sink receives every head in the order of the numbers, at least once. At the start and after each failure, the sealer
reads the newest head that the sink holds, and continues after it.
"""

import asyncio
import os
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import httpx

from control_plane.audit.heads import BadHead, SignedHead, head_of

TIMEOUT_SECONDS: Final = 10.0
CONTENT_TYPE: Final = "application/jose"


class SinkUnavailable(Exception):
    """A sink did not accept a head; the message names the sink and the reason."""


class Sink(Protocol):
    """A place outside the database that keeps signed heads of the ledger."""

    @property
    def name(self) -> str:
        """Name of the sink in log lines and in the API: its path or URL, without a user name, a password and a query,
        which may contain secrets.
        """
        ...

    async def last(self) -> SignedHead | None:
        """Return the newest head that the sink holds, None if it holds none or does not report it. Raises
        `SinkUnavailable`.
        """
        ...

    async def send(self, head: SignedHead) -> None:
        """Store a signed head durably. Raises `SinkUnavailable`."""
        ...


def public_url(url: str) -> str:
    """Return a URL without its user name, password, query and fragment."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class FileSink:
    """A file with one head per line, which only grows. Each line is on the disk before the next head is sent."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return str(self._path)

    async def last(self) -> SignedHead | None:
        return await asyncio.to_thread(self._last)

    async def send(self, head: SignedHead) -> None:
        try:
            await asyncio.to_thread(self._append, head.text)
        except OSError as error:
            raise SinkUnavailable(f"{self._path} cannot be written: {error.strerror}") from error

    def _last(self) -> SignedHead | None:
        try:
            lines = self._path.read_text(errors="replace").splitlines()
        except FileNotFoundError as error:
            if self._path.parent.exists():
                return None
            # The folder may be on a file system that is not mounted yet, with a file that has heads.
            raise SinkUnavailable(f"{self._path} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise SinkUnavailable(f"{self._path} cannot be read: {error.strerror}") from error
        for line in reversed(lines):
            try:
                return head_of(line)
            except BadHead:
                continue  # a line that was written only in part
        return None

    def _append(self, line: str) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
            # A crash may have left a part of a line: it stays, and the head begins on a new line.
            begin = b"\n" if end and file.read(1) != b"\n" else b""
            file.write(begin + line.encode() + b"\n")
            os.fsync(file.fileno())


class HttpSink:
    """A service that stores heads: each is sent with POST, as the text of a JWS, until it is answered with 2xx."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url, self._client = url, client

    @property
    def name(self) -> str:
        return public_url(self._url)

    async def last(self) -> SignedHead | None:
        return None

    async def send(self, head: SignedHead) -> None:
        try:
            answer = await self._client.post(
                self._url,
                content=head.text,
                headers={"Content-Type": CONTENT_TYPE},
                timeout=TIMEOUT_SECONDS,
            )
        except (httpx.HTTPError, OSError) as error:
            raise SinkUnavailable(f"{self.name} did not answer: {error}") from error
        if not answer.is_success:
            raise SinkUnavailable(f"{self.name} answered {answer.status_code}")
