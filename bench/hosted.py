"""What nodes have in common that a bench hosts: simulated, each with its agent, its session, its queue and its host.

A process hosts many, on one timetable. It is told what to host, then one word after another, each answered with one
line, and ends when its standard input does. Every node is a node in all that the control plane sees: it enrols with
its one-time token and a key pair of its own. Its host exists in memory and counts what is done to it.
"""

import gc
import os
import sys
import threading
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
from node_agent.wiring import Agent
from tasks.timetable import Timetable

_WARNING: Final = 30
_COLLECTING: Final = (50_000, 20, 100)
"""Of `gc`: what a process's many nodes hold lives as long as it does, and to look through all of it as often as by
default takes a quarter of its time. A lone agent holds a hundredth of that.
"""


class Hosting(msgspec.Struct, frozen=True):
    """What all nodes of a process share. `folder` holds their disks; to `log` goes all that is worse than news."""

    api_url: str
    folder: str
    log: str
    slots: int
    survey_seconds: float = Settings.model_fields["survey_seconds"].default


class Admitted(msgspec.Struct, frozen=True):
    """A node that is expected, and the token that it enrols with."""

    name: str
    token: str


class HostedNode:
    """One node, whoever its agent is.

    `effects` counts what was done to its host, by effect and place (`port.add slice0`; machines by their UUID).
    """

    def __init__(self, hosting: Hosting, admitted: Admitted, timetable: Timetable) -> None:
        self.name, self._timetable = admitted.name, timetable
        self.settings = _settings(hosting, admitted)
        self.effects: Counter[str] = Counter()
        self.host = SimulatedHost(uplink=self.settings.uplink, noted=self._note)
        self.agent: Agent | None = None

    def start(self) -> str | None:
        """Have a new agent, which takes orders when this returns; or why there is none."""
        halt = Halt()
        try:
            session = become_known(self.settings, halt)
            self.agent = Agent(self.settings, session, self._build, self._timetable)
            self.agent.start(halt)
        except (EnrolmentRefused, OSError) as error:
            return f"{self.name} did not come up: {error}"
        return None

    def stop(self) -> None:
        if self.agent is not None:
            self.agent.stop()

    def _build(self, settings: Settings, subnet: Ipv4Subnet, ended: Callable[[], None]) -> Host:
        return host_over(self.host, settings, subnet, ended)

    def _note(self, effect: str, of: str) -> None:
        self.effects[f"{effect} {of}".rstrip()] += 1


class BrokenThreads:
    """Threads of this process that ended by an error, in words."""

    def __init__(self) -> None:
        self.found: list[str] = []
        threading.excepthook = self._broke

    def _broke(self, how: threading.ExceptHookArgs) -> None:
        name = how.thread.name if how.thread else "unknown"
        self.found.append(f"thread {name} broke: {how.exc_value!r}")


def start_all(nodes: Sequence[HostedNode], at_once: int) -> list[str]:
    """Have each start, so many at a time; what went wrong."""
    with ThreadPoolExecutor(at_once) as threads:
        return [fault for fault in threads.map(lambda node: node.start(), nodes) if fault]


def serve(answers: Callable[[Hosting, Iterator[str]], Iterator[msgspec.Struct]]) -> None:
    """Be the process: `answers` gets what to host and the lines that follow, and gives a line before and for each."""
    gc.set_threshold(*_COLLECTING)
    lines = iter(sys.stdin.readline, "")
    hosting = msgspec.json.decode(next(lines), type=Hosting)
    with Path(hosting.log).open("a", encoding="utf-8") as log:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(_WARNING),
            logger_factory=structlog.PrintLoggerFactory(log),
        )
        for answer in answers(hosting, lines):
            sys.stdout.write(f"{msgspec.json.encode(answer).decode()}\n")
            sys.stdout.flush()
    # Not by returning: a thread that still waits for something would be waited for.
    os._exit(0)


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
            "survey_seconds": hosting.survey_seconds,
            "simulated": {},
        }
    )
