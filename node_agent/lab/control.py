"""Protocol between a lab and its hosts: commands on stdin and events on stdout, one JSON object per line."""

from typing import Literal

import msgspec


class Daemon(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program that runs as long as its lab host. It is started when the daemons named in `after` are ready.

    `probe` is a command that exits 0 when the program is ready. A program without a probe is ready immediately.
    """

    name: str
    argv: tuple[str, ...]
    probe: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class LinksAttached(msgspec.Struct, frozen=True, tag="links_attached"):
    """Command to a lab host to configure the addresses of its network cards, which are attached now."""


class StartDaemon(msgspec.Struct, frozen=True, tag="start_daemon"):
    """Command to a lab host to start a daemon, after stopping any daemon with the same name."""

    daemon: Daemon


class StopDaemon(msgspec.Struct, frozen=True, tag="stop_daemon"):
    """Command to a lab host to stop a daemon."""

    name: str


Command = LinksAttached | StartDaemon | StopDaemon


class Event(msgspec.Struct, frozen=True):
    """A state change of a lab host. `born`: the host's namespaces exist. `ready`: all daemons of the host are ready."""

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
