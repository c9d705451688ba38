"""Simulated nodes that go through restarts of their agents, in a process of their own.

Each node has a disk and a host that outlive its agent: a restart is a new agent over what the old one left, with its
session to renew, its fences to read, and its whole host to look at. Between two agents the bench may damage slots of
a host by hand. The host counts every effect that an agent has on it, so that one too many is found. The process ends
when its standard input does.
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

from events.values import Ipv4Subnet, SlotIndex
from node_agent.enrol import EnrolmentRefused, become_known
from node_agent.flows import cookie_of
from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.node import host_over
from node_agent.settings import Settings
from node_agent.slices import tap_of
from node_agent.wiring import Agent
from tasks.timetable import Timetable

_AT_ONCE: Final = 16
"""Agents that start at a time: more would wait for the same interpreter, and the control plane for none of them."""


class Hosting(msgspec.Struct, frozen=True):
    """What all nodes of a process share. `folder` holds their disks; to `log` goes all that is worse than news."""

    api_url: str
    folder: str
    log: str
    slots: int


class Admitted(msgspec.Struct, frozen=True):
    """A node that is expected, and the token that it enrols with."""

    name: str
    token: str


class Admit(msgspec.Struct, frozen=True, tag=True):
    """Have these enrol and come up."""

    nodes: list[Admitted]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End all agents. From here on effects are counted."""


class Damage(msgspec.Struct, frozen=True, tag=True):
    """Take the switch ports of these slots away, as (node, index), their agents stopped."""

    slots: list[tuple[str, int]]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start all agents; answered when each takes orders."""


class Look(msgspec.Struct, frozen=True, tag=True):
    """Say what the agents did since they were stopped."""


Word = Admit | Stop | Damage | Start | Look


class Done(msgspec.Struct, frozen=True):
    """`effects` on all hosts of the process, by kind; `faults` are in words. `at` is the machine's monotonic clock
    (ns)."""

    at: int
    effects: dict[str, int]
    faults: list[str]


class _Node:
    """One node, whoever its agent is."""

    def __init__(self, hosting: Hosting, admitted: Admitted, timetable: Timetable) -> None:
        self.settings, self._timetable = _settings(hosting, admitted), timetable
        self.effects: Counter[str] = Counter()
        self._host = SimulatedHost(uplink=self.settings.uplink, noted=self._note)
        self._agent: Agent | None = None

    def start(self) -> None:
        """Raises `EnrolmentRefused`, `OSError`."""
        halt = Halt()
        session = become_known(self.settings, halt)
        self._agent = Agent(self.settings, session, self._build, self._timetable)
        self._agent.start(halt)

    def stop(self) -> None:
        if self._agent is not None:
            self._agent.stop()
        self.effects.clear()

    def damage(self, index: int) -> None:
        tap, cookie = tap_of(SlotIndex(index)), cookie_of(SlotIndex(index))
        with self._host.change() as state:
            state.ports = [port for port in state.ports if port.name != tap]
            state.flows = [flow for flow in state.flows if flow.cookie != cookie]

    def _build(self, settings: Settings, subnet: Ipv4Subnet, ended: Callable[[], None]) -> Host:
        return host_over(self._host, settings, subnet, ended)

    def _note(self, effect: str, _of: str) -> None:
        self.effects[effect] += 1


class _Nodes:
    """All nodes of the process."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting, self._timetable = hosting, Timetable()
        self._nodes: dict[str, _Node] = {}
        self._broken: list[str] = []
        threading.excepthook = self._broke

    def obey(self, word: Word) -> Done:
        match word:
            case Admit(nodes):
                fresh = {each.name: _Node(self._hosting, each, self._timetable) for each in nodes}
                self._nodes.update(fresh)
                return self._done(_at_once(_fault_of, [*fresh.values()]))
            case Stop():
                return self._done(_at_once(_Node.stop, [*self._nodes.values()]))
            case Damage(slots):
                for name, index in slots:
                    self._nodes[name].damage(index)
                return self._done()
            case Start():
                return self._done(_at_once(_fault_of, [*self._nodes.values()]))
            case Look():
                return self._done()

    def _done(self, faults: Sequence[str | None] = ()) -> Done:
        effects = sum((node.effects for node in self._nodes.values()), Counter[str]())
        return Done(time.monotonic_ns(), dict(effects), [*filter(None, faults), *self._broken])

    def _broke(self, how: threading.ExceptHookArgs) -> None:
        name = how.thread.name if how.thread else "unknown"
        self._broken.append(f"thread {name} broke: {how.exc_value!r}")


def _at_once(work: Callable[[_Node], str | None], nodes: Sequence[_Node]) -> list[str | None]:
    with ThreadPoolExecutor(_AT_ONCE) as at_once:
        return [*at_once.map(work, nodes)]


def _fault_of(node: _Node) -> str | None:
    try:
        node.start()
    except (EnrolmentRefused, OSError) as error:
        return f"{node.settings.node_id} did not come up: {error}"
    return None


def _settings(hosting: Hosting, admitted: Admitted) -> Settings:
    folder = Path(hosting.folder) / admitted.name
    folder.mkdir()
    token = folder / "token"
    token.write_text(admitted.token)
    return Settings.model_validate(
        {
            "node_id": admitted.name,
            "api_url": hosting.api_url,
            "enrolment_token_file": token,
            "state_folder": folder / "state",
            "run_folder": folder / "run",
            "images_folder": folder / "images",
            "slots": [{"index": index, "vcpus": 1, "memory_mib": 96} for index in range(hosting.slots)],
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


def _answers(nodes: _Nodes, lines: Iterator[str]) -> Iterator[Done]:
    yield nodes.obey(Look())
    for line in lines:
        yield nodes.obey(msgspec.json.decode(line, type=Word))


if __name__ == "__main__":
    main()
