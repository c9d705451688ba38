"""The folder of dnsmasq's reservations: which of its files are not as this program writes them.

dnsmasq reads every file there, in many syntaxes, as its own user: a reservation that it may not read is ignored, and
one with other options acts differently. So a file is spoilt if it has a slot's name, and foreign otherwise, unless it
holds exactly `mac,ip`, belongs to this user and is world-readable. A valid reservation is foreign too if it neither
belongs to a slot nor conflicts with one; a conflicting one is reported by that slot.
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
from node_agent.gateway import SLOTS
from node_agent.leases import Reservation

FILE_MODE: Final = 0o644
FOLDER_MODE: Final = 0o755
_LONGEST: Final = 4096
"""Bytes that are read of a file."""
_NO_MAC: Final = MacAddress("00:00:00:00:00:00")
_NO_IP: Final = Ipv4Address("0.0.0.0")  # noqa: S104 - no address is bound
"""Address given to a file in which no reservation can be read."""


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file among the reservations that this program did not write like this; `why` describes the difference."""

    path: Path
    why: str


def line_of(reservation: Reservation) -> str:
    return f"{reservation.mac},{reservation.ip}\n"


def reservations_of(folder: Path) -> Iterator[Reservation]:
    """Yield the reservations in all files, spoilt ones too, whatever program wrote them. Raises `OSError`."""
    for path in _files(folder):
        with suppress(FileNotFoundError):  # gone meanwhile
            match _read(path):
                case str(why):
                    yield from _spoilt(path, why)
                case whole:
                    yield whole


def foreign_files(folder: Path) -> tuple[ForeignFile, ...]:
    """Return the foreign files of the folder, and the folder itself where its mode differs. Raises `OSError`."""
    return tuple(_foreign(folder)) if folder.exists() else ()


def remove(path: Path) -> None:
    """Raises `OSError`; a path where nothing is counts as done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make the folder and its parent accessible for dnsmasq. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder.parent, folder):
        each.chmod(FOLDER_MODE)
        os.chown(each, os.geteuid(), -1)


def _foreign(folder: Path) -> Iterator[ForeignFile]:
    if why := _mode_differs(folder.stat(), FOLDER_MODE):
        yield ForeignFile(folder, why)
    whole = dict[Path, Reservation]()
    for path in _files(folder):
        with suppress(FileNotFoundError):  # gone meanwhile
            match _read(path):
                case str(why):
                    if path.name not in SLOTS:
                        yield ForeignFile(path, why)
                case reservation:
                    whole[path] = reservation
    held = Counter(key for each in whole.values() for key in (each.mac, each.ip))
    for path, each in whole.items():
        if each.name not in SLOTS and held[each.mac] == held[each.ip] == 1:
            yield ForeignFile(path, "of no slot")


def _files(folder: Path) -> Iterator[Path]:
    # dnsmasq passes over names that begin with a dot; drafts of this program have such.
    return (each for each in folder.glob("*") if each.name[0] != ".")


def _read(path: Path) -> Reservation | str:
    """The one reservation that the file holds as this program writes it; or how it differs from that."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return "not a regular file"
    if why := _mode_differs(found, FILE_MODE):
        return why
    content = _content(path)
    match list(_lines(path.name, content)):
        case [one] if content == line_of(one).encode():
            return one
        case _:
            return "not one line MAC,IP"


def _spoilt(path: Path, why: str) -> Iterator[Reservation]:
    content = _content(path) if path.is_file() else b""
    nothing = Reservation(path.name, _NO_MAC, _NO_IP)
    for each in list(_lines(path.name, content)) or [nothing]:
        yield replace(each, spoilt=why)


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
