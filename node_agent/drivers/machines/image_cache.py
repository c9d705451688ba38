"""The disk images that a node has cached below `cache/`, named by the hexadecimal digits of their SHA-256 digests.

An image is downloaded from the configured store, or placed here by an operator. A download writes to `DIGEST.partial`
and continues where an earlier one ended; the complete image gets its final name. Each image is verified once by each
agent process before it is used. The time of the last use of an image is the time of its last modification.
"""

import hashlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError

from node_agent.host.slices import HostRefused, HostUnreadable, ImageUnusable
from node_agent.runtime.durable import sync_folder
from node_agent.settings import RootDiskSettings, SettingsRefused
from tasks.orders import RootDisk
from tasks.trust import UnusableCa, trust

log = structlog.get_logger(__name__)
_GIB: Final = 2**30
_PIECE: Final = 2**20
_HASH_PIECE: Final = 2**24
_TIMEOUT: Final = Timeout(connect=5.0, read=10.0)
_LENGTH: Final = 64


def hexadecimal(disk: RootDisk) -> str:
    """Return the 64 hexadecimal digits of the digest of a root disk's image."""
    return disk.digest.removeprefix("sha256:")


class ImageCache:
    """Cached disk images of a node. Thread-safe: an image that several slots need is downloaded once."""

    def __init__(self, settings: RootDiskSettings, call_seconds: float) -> None:
        self._settings, self._seconds = settings, call_seconds
        self._folder = settings.folder / "cache"
        self._pool = _pool(settings)
        self._verified = set[str]()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def fetch(self, disk: RootDisk) -> None:
        """Download an image unless it is cached. Raises `ImageUnusable` if the store does not have it, or if it differs
        from the catalogue; `HostRefused` if it cannot be stored; `HostUnreadable` while it is incomplete.
        """
        until = time.monotonic() + self._seconds
        path = self._folder / hexadecimal(disk)
        with self._only_one(path.name, until):
            try:
                if path.exists() and self._is_right(disk, path):
                    os.utime(path)
                    return
                self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
                partial = path.with_name(f"{path.name}.partial")
                self._make_room(disk.image_bytes, partial)
                self._download(disk, partial, until)
                if not self._is_right(disk, partial):
                    raise ImageUnusable(
                        f"{self._url(disk)} does not have the digest {disk.digest}; it was deleted"
                    )
                partial.chmod(0o644)
                os.replace(partial, path)
                sync_folder(self._folder)
            except OSError as error:
                raise HostRefused(f"cannot store image {disk.digest} in {self._folder}: {error}") from error
            log.info("image_cached", digest=disk.digest, bytes=disk.image_bytes)

    def link(self, disk: RootDisk, path: Path) -> None:
        """Create a hard link to a cached image, or raise `FileNotFoundError` if the image is not cached."""
        path.unlink(missing_ok=True)
        os.link(self._folder / hexadecimal(disk), path)

    @contextmanager
    def _only_one(self, name: str, until: float) -> Iterator[None]:
        lock = self._locks[name]
        if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise HostUnreadable(f"image {name} is being downloaded for another slot")
        try:
            yield
        finally:
            lock.release()

    def _make_room(self, size: int, partial: Path) -> None:
        """Delete the images that were not used for the longest time, until one more image of `size` bytes fits in the
        cache. Raises `HostRefused` if it cannot fit, because root disks use the other images.
        """
        bound = self._settings.cache_gib * _GIB
        cached = [
            (each, each.stat()) for each in self._folder.iterdir() if _is_image(each) and each != partial
        ]
        total = size + sum(stat.st_size for _, stat in cached)
        for path, stat in sorted(cached, key=lambda each: each[1].st_mtime):
            # A further link is that of a root disk.
            if total > bound and stat.st_nlink == 1:
                path.unlink()
                self._verified.discard(f"sha256:{path.name}")
                total -= stat.st_size
                log.info("image_removed_from_cache", image=path.name, bytes=stat.st_size)
        if total > bound:
            raise HostRefused(
                f"an image of {size} bytes does not fit in the cache of {self._settings.cache_gib} GiB: root disks use"
                f" the other images; raise cache_gib in the settings of the agent"
            )

    def _download(self, disk: RootDisk, partial: Path, until: float) -> None:
        done = partial.stat().st_size if partial.exists() else 0
        if done > disk.image_bytes:
            partial.unlink()
            done = 0
        if done == disk.image_bytes:
            return
        if self._settings.store is None:
            raise HostRefused(
                f"image {disk.digest} is not in the cache {self._folder}, and the settings name no image store"
            )
        url = self._url(disk)
        try:
            response = self._pool.request(
                "GET",
                url,
                headers={"Range": f"bytes={done}-", "Accept-Encoding": "identity"},
                preload_content=False,
                retries=False,
                timeout=_TIMEOUT,
            )
            with response:
                done = _start_of(response, done, url)
                _append(disk, response, partial, done, until)
        except HTTPError as error:
            raise HostUnreadable(f"cannot download {url}: {error}") from error

    def _url(self, disk: RootDisk) -> str:
        return f"{(self._settings.store or '').rstrip('/')}/sha256/{hexadecimal(disk)}"

    def _is_right(self, disk: RootDisk, path: Path) -> bool:
        """Return whether the file `path` has the digest of the image of `disk`. Delete the file if it does not."""
        if disk.digest in self._verified:
            return True
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_HASH_PIECE):
                digest.update(piece)
        if digest.hexdigest() == hexadecimal(disk):
            self._verified.add(disk.digest)
            return True
        log.warning("image_with_wrong_digest_deleted", path=str(path), digest=digest.hexdigest())
        path.unlink()
        return False


def _start_of(response: BaseHTTPResponse, done: int, url: str) -> int:
    """Return the position in the image at which a response of the store starts, after a request for the part after
    `done` bytes. Raises `ImageUnusable` or `HostUnreadable` if the store does not send the image.
    """
    match response.status:
        case 206:
            return done
        case 200:
            # The store sends the whole image, whatever part was requested.
            return 0
        case 429 | 500 | 502 | 503 | 504:
            raise HostUnreadable(f"cannot download {url}: the image store answers {response.status}")
        case _:
            raise ImageUnusable(f"cannot download {url}: the image store answers {response.status}")


def _append(disk: RootDisk, response: BaseHTTPResponse, partial: Path, done: int, until: float) -> None:
    """Append a response to the first `done` bytes of a partial download."""
    with partial.open("r+b" if partial.exists() else "wb") as file:
        file.seek(done)
        file.truncate()
        for piece in response.stream(_PIECE):
            done += len(piece)
            if done > disk.image_bytes:
                file.truncate(0)
                raise ImageUnusable(
                    f"the image store sends more than the {disk.image_bytes} bytes that image {disk.digest} has"
                )
            file.write(piece)
            if done < disk.image_bytes and time.monotonic() > until:
                raise HostUnreadable(
                    f"{done} of {disk.image_bytes} bytes of image {disk.digest} are downloaded; the next attempt continues"
                )
        file.flush()
        os.fsync(file.fileno())
    if done < disk.image_bytes:
        raise HostUnreadable(
            f"the image store ended image {disk.digest} after {done} of {disk.image_bytes} bytes; the next attempt continues"
        )


def _is_image(path: Path) -> bool:
    """Return whether a file is an image, or a partial download of an image, by its name. The cache deletes no other
    file.
    """
    name = path.name.removesuffix(".partial")
    return len(name) == _LENGTH and set(name) <= set("0123456789abcdef") and path.is_file()


def _pool(settings: RootDiskSettings) -> PoolManager:
    """Return the HTTP client for the image store. Raises `SettingsRefused` if its CA cannot be used."""
    path = settings.store_ca_file
    try:
        context = trust(None if path is None else path.read_text())
    except (UnusableCa, OSError, UnicodeDecodeError) as error:
        raise SettingsRefused(f"cannot use the CA in root_disks.store_ca_file {path}: {error}") from error
    return PoolManager(ssl_context=context)
