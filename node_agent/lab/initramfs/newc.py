"""Encoder for initramfs archives in the "newc" format (initramfs-buffer-format.rst).

cpio(1) is not used, because a fresh Debian does not have it and because it needs root to create device nodes as its
input. All entries are owned by root and have the time stamp 0, so that equal content results in equal bytes.
"""

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_END: Final = "TRAILER!!!"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder, link or device in an initramfs archive. `mode` contains type and permissions, as in stat(2)."""

    path: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def folder(path: str, permissions: int = 0o755) -> Entry:
    return Entry(path, stat.S_IFDIR | permissions)


def file(path: str, content: bytes, permissions: int = 0o644) -> Entry:
    return Entry(path, stat.S_IFREG | permissions, content)


def link(path: str, target: str) -> Entry:
    return Entry(path, stat.S_IFLNK | 0o777, target.encode())


def character_device(path: str, major: int, minor: int) -> Entry:
    return Entry(path, stat.S_IFCHR | 0o600, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """Encode an initramfs archive of `entries`, and add the missing parent folders of all paths."""
    named = {entry.path: entry for entry in entries}
    parents = {parent: folder(parent) for path in named for parent in _parents(path)}
    ordered = [entry for _, entry in sorted((parents | named).items())]
    records = [_record(number, entry) for number, entry in enumerate([*ordered, Entry(_END, 0)], start=1)]
    return b"".join(records)


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _record(number: int, entry: Entry) -> bytes:
    name = entry.path.encode() + b"\0"
    links, time, owner = 1, 0, (0, 0)
    numbers = (
        number,
        entry.mode,
        0,
        0,
        links,
        time,
        len(entry.content),
        *owner,
        *entry.device,
        len(name),
        0,
    )
    header = b"070701" + b"".join(b"%08x" % field for field in numbers)
    return _padded(header + name) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
