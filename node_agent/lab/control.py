"""What a lab says to its little hosts over their stdin, and what they answer on stdout: JSON, a line each."""

from typing import Literal

import msgspec


class Daemon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program that runs for as long as its host, started once those named in `after` answer.

    `probe` is a command that exits 0 once the program serves; without one it counts as serving at once.
    """

    name: str
    argv: tuple[str, ...]
    probe: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class LinksAttached(msgspec.Struct, frozen=True, tag="links_attached"):
    """The host's network cards are plugged in: give them their addresses."""


class StartDaemon(msgspec.Struct, frozen=True, tag="start_daemon"):
    """Run this too; one of the same name is stopped first."""

    daemon: Daemon


class StopDaemon(msgspec.Struct, frozen=True, tag="stop_daemon"):
    name: str


Command = LinksAttached | StartDaemon | StopDaemon


class Event(msgspec.Struct, frozen=True):
    """`born`: the namespaces exist. `ready`: every daemon answers."""

    kind: Literal["born", "ready"]

    def encoded(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def encode(command: Command) -> bytes:
    return msgspec.json.encode(command) + b"\n"


_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


def decode(line: bytes) -> Command:
    return _commands.decode(line)


def decode_event(line: bytes) -> Event:
    return msgspec.json.decode(line, type=Event)
