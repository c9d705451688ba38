"""The folder of dnsmasq's reservations: read reservations, and detect files that the agent did not write.

dnsmasq reads every file in the folder, in many syntaxes, as its own user. It ignores a file that it may not read, and a
reservation with additional options behaves differently. A file is therefore valid only if it contains exactly `mac,ip`,
belongs to the agent's user and is world-readable. An invalid file is spoilt if it has the name of a slot, and foreign
if it has any other name. A valid reservation that belongs to no slot is foreign too, unless it conflicts with a slot's
reservation: the conflict is then reported for that slot.
"""

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from events.values import InvalidValue, Ipv4Address, MacAddress, ipv4_address, mac_address
from node_agent.aspects.gateway import SLOTS
from node_agent.aspects.leases import Reservation

FILE_MODE: Final = 0o644
FOLDER_MODE: Final = 0o755
_LONGEST: Final = 4096
"""Maximum number of bytes that are read from a reservation file."""
_NO_MAC: Final = MacAddress("00:00:00:00:00:00")
_NO_IP: Final = Ipv4Address("0.0.0.0")  # noqa: S104 - no address is bound
"""Placeholder address for a reservation file that contains no readable reservation."""


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file in the reservation folder that the agent would not write; `reason` describes the difference."""

    path: Path
    reason: str


def line_of(reservation: Reservation) -> str:
    return f"{reservation.mac},{reservation.ip}\n"


def reservations_of(folder: Path) -> Iterator[Reservation]:
    """Yield the reservations in all files of the folder, including invalid and foreign files. Raises `OSError`."""
    for path in _files(folder):
        with suppress(FileNotFoundError):  # deleted since it was listed
            match _read(path):
                case str(reason):
                    yield from _spoilt(path, reason)
                case whole:
                    yield whole


def foreign_files(folder: Path) -> tuple[ForeignFile, ...]:
    """Return the foreign files in the reservation folder, and the folder if its mode is wrong. Raises `OSError`."""
    return tuple(_foreign(folder)) if folder.exists() else ()


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents; a missing path is ignored. Raises `OSError`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create the reservation folder, and make this folder and its parent accessible to dnsmasq. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder.parent, folder):
        each.chmod(FOLDER_MODE)
        os.chown(each, os.geteuid(), -1)


def _foreign(folder: Path) -> Iterator[ForeignFile]:
    if reason := _mode_differs(folder.stat(), FOLDER_MODE):
        yield ForeignFile(folder, reason)
    whole = dict[Path, Reservation]()
    for path in _files(folder):
        with suppress(FileNotFoundError):  # deleted since it was listed
            match _read(path):
                case str(reason):
                    if path.name not in SLOTS:
                        yield ForeignFile(path, reason)
                case reservation:
                    whole[path] = reservation
    held = Counter(key for each in whole.values() for key in (each.mac, each.ip))
    for path, each in whole.items():
        if each.name not in SLOTS and held[each.mac] == held[each.ip] == 1:
            yield ForeignFile(path, "the file's reservation belongs to no slot")


def _files(folder: Path) -> Iterator[Path]:
    # dnsmasq ignores names that begin with a dot, which this program uses for drafts.
    return (each for each in folder.glob("*") if each.name[0] != ".")


def _read(path: Path) -> Reservation | str:
    """Return the reservation in a valid reservation file, or the reason why the file is invalid."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if reason := _mode_differs(found, FILE_MODE):
        return reason
    content = _content(path)
    match list(_lines(path.name, content)):
        case [one] if content == line_of(one).encode():
            return one
        case _:
            return "the file's content is not a single line MAC,IP"


def _spoilt(path: Path, reason: str) -> Iterator[Reservation]:
    content = _content(path) if path.is_file() else b""
    nothing = Reservation(path.name, _NO_MAC, _NO_IP)
    for each in list(_lines(path.name, content)) or [nothing]:
        yield replace(each, spoilt=reason)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST)


def _lines(name: str, content: bytes) -> Iterator[Reservation]:
    for line in content.decode(errors="replace").splitlines():
        mac, _, ip = line.strip().partition(",")
        with suppress(InvalidValue):
            yield Reservation(name, mac_address(mac), ipv4_address(ip))


def _mode_differs(found: os.stat_result, mode: int) -> str:
    if stat.S_IMODE(found.st_mode) != mode:
        return f"mode {stat.S_IMODE(found.st_mode):03o} instead of {mode:03o}"
    if found.st_uid != os.geteuid():
        return f"owner {found.st_uid} instead of {os.geteuid()}"
    return ""
