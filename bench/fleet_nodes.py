"""Simulated nodes of the fleet, in a process of their own: each with its agent, its session, its queue and its host.

It is told what to host, then which nodes to admit, and at the end to take them down and say what they hold. Every
node is a node in all that the control plane sees: it enrols with its one-time token and a key pair of its own. Its host
exists in memory and counts what is done to it. The process ends when its standard input does.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import structlog

from events.values import Ipv4Subnet
from node_agent.enrol import EnrolmentRefused, become_known
from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.node import host_over
from node_agent.settings import Settings
from node_agent.spool import Spool
from node_agent.wiring import Agent
from tasks.timetable import Timetable

_AT_ONCE: Final = 8
"""Nodes that come up at a time, and go down."""
_DRAIN_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.1
_TRACES: Final = ("taps", "others", "ports", "flows", "reservations", "leases", "nat", "domains", "disks")
"""What a slice leaves on a host, by the names that the host's state has for it."""


class Hosting(msgspec.Struct, frozen=True):
    """What all nodes of a process share. `folder` holds their disks; to `log` goes all that is worse than news."""

    api_url: str
    folder: str
    log: str
    slots: int
    survey_seconds: float


class Admitted(msgspec.Struct, frozen=True):
    """A node that is expected, and the token that it enrols with."""

    name: str
    token: str


class Faults(msgspec.Struct, frozen=True):
    """What went wrong: with nodes that did not come up, or with threads that ended by an error."""

    found: list[str]


class Holding(msgspec.Struct, frozen=True):
    """What a node was found with, its agent stopped.

    `effects` counts what was done to the host, by effect and place (`port.add slice0`; machines by their UUID), `left`
    is what the host has beyond what it came up with, and `spooled` counts reports that nobody took.
    """

    name: str
    effects: dict[str, int]
    left: list[str]
    spooled: int


class Down(msgspec.Struct, frozen=True):
    """The last answer."""

    nodes: list[Holding]
    faults: list[str]


class _Node:
    """One node, from its admission on."""

    def __init__(self, hosting: Hosting, admitted: Admitted, timetable: Timetable) -> None:
        self.name, self._timetable = admitted.name, timetable
        self._settings = _settings(hosting, admitted)
        self._effects: Counter[str] = Counter()
        self._host = SimulatedHost(uplink=self._settings.uplink, noted=self._note)
        self._agent: Agent | None = None
        self._first: Counter[str] = Counter()

    def come_up(self) -> None:
        """Raises `EnrolmentRefused`, `OSError`."""
        halt = Halt()
        session = become_known(self._settings, halt)
        self._agent = Agent(self._settings, session, self._build, self._timetable)
        self._agent.start(halt)
        self._first = self._carries()

    def go_down(self) -> Holding:
        """Once the control plane took its last report, or did not for long."""
        if self._agent is not None:
            deadline = time.monotonic() + _DRAIN_SECONDS
            while self._agent.untold and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            self._agent.stop()
        left = (self._carries() - self._first).elements()
        spool = Spool(self._settings.state_folder / "spool")
        return Holding(self.name, dict(self._effects), sorted(left), spool.waiting)

    def _build(self, settings: Settings, subnet: Ipv4Subnet, ended: Callable[[], None]) -> Host:
        return host_over(self._host, settings, subnet, ended)

    def _note(self, effect: str, of: str) -> None:
        self._effects[f"{effect} {of}".rstrip()] += 1

    def _carries(self) -> Counter[str]:
        with self._host.look() as state:
            return Counter(f"{kind} {each}" for kind in _TRACES for each in getattr(state, kind))


class _Nodes:
    """All nodes of the process, on one timetable."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting, self._timetable = hosting, Timetable()
        self._nodes: list[_Node] = []
        self.broken: list[str] = []
        threading.excepthook = self._broke

    def admit(self, admitted: Sequence[Admitted]) -> Faults:
        """Returns when they take orders."""
        fresh = [_Node(self._hosting, each, self._timetable) for each in admitted]
        self._nodes += fresh
        with ThreadPoolExecutor(_AT_ONCE) as at_once:
            return Faults([fault for fault in at_once.map(_fault_of, fresh) if fault])

    def down(self) -> Down:
        with ThreadPoolExecutor(_AT_ONCE) as at_once:
            return Down([*at_once.map(_Node.go_down, self._nodes)], self.broken)

    def _broke(self, how: threading.ExceptHookArgs) -> None:
        name = how.thread.name if how.thread else "unknown"
        self.broken.append(f"thread {name} broke: {how.exc_value!r}")


def _fault_of(node: _Node) -> str | None:
    try:
        node.come_up()
    except (EnrolmentRefused, OSError) as error:
        return f"{node.name} did not come up: {error}"
    return None


def _settings(hosting: Hosting, admitted: Admitted) -> Settings:
    folder = Path(hosting.folder) / admitted.name
    folder.mkdir()
    token = folder / "token"
    token.write_text(admitted.token)
    slots = [{"index": index, "vcpus": 1, "memory_mib": 96} for index in range(hosting.slots)]
    return Settings.model_validate(
        {
            "node_id": admitted.name,
            "api_url": hosting.api_url,
            "enrolment_token_file": token,
            "state_folder": folder / "state",
            "run_folder": folder / "run",
            "images_folder": folder / "images",
            "slots": slots,
            "survey_seconds": hosting.survey_seconds,
            "simulated": {},
        }
    )


def main() -> None:
    lines = iter(sys.stdin.readline, "")
    hosting = msgspec.json.decode(next(lines), type=Hosting)
    with Path(hosting.log).open("a", encoding="utf-8") as log:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(30),
            logger_factory=structlog.PrintLoggerFactory(log),
        )
        for answer in _answers(_Nodes(hosting), lines):
            sys.stdout.write(f"{msgspec.json.encode(answer).decode()}\n")
            sys.stdout.flush()
    # Not by returning: a thread that still waits for something would be waited for.
    os._exit(0)


def _answers(nodes: _Nodes, lines: Iterator[str]) -> Iterator[Faults | Down]:
    yield Faults([])
    for line in lines:
        admitted = msgspec.json.decode(line, type=list[Admitted] | None)
        yield nodes.down() if admitted is None else nodes.admit(admitted)


if __name__ == "__main__":
    main()
