"""Simulated nodes that a benchmark hosts in one process, each with its own agent, session, queue and host.

A process runs the periodic jobs of all its nodes on few shared threads. The first line of standard input describes the
nodes, and each later line is an instruction that the process answers with one line. It ends when its
standard input is closed. For the control plane, every node is a complete node: it enrols with a one-time token and its
own key pair. Its host exists in memory and counts effects.
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
from node_agent.host.host import Host
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.node import assemble_simulated_host
from node_agent.runtime.halt import Halt
from node_agent.runtime.timetable import Timetable
from node_agent.settings import Settings
from node_agent.transport.enrol import EnrolmentRefused, enrol_or_resume
from node_agent.wiring import Agent

_WARNING: Final = 30
_GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Thresholds of `gc`: most objects of the many nodes live as long as the process, and scanning them as often as by
default takes a quarter of its time. The process of a single agent holds a hundredth of them.
"""


class HostingSettings(msgspec.Struct, frozen=True):
    """Settings that all nodes of a process share. `folder` holds their disks; `log` receives warnings and errors."""

    api_url: str
    folder: str
    log: str
    slots: int
    survey_seconds: float = Settings.model_fields["survey_seconds"].default


class Admitted(msgspec.Struct, frozen=True):
    """A registered node, and the token with which it enrols."""

    name: str
    token: str


class HostedNode:
    """A simulated node, with a host in memory that outlives the node's agents.

    `effects` counts changes to its host, by effect and object (`port.add slice0`; machines by their UUID).
    """

    def __init__(self, hosting: HostingSettings, admitted: Admitted, timetable: Timetable) -> None:
        self.name, self._timetable = admitted.name, timetable
        self.settings = _settings(hosting, admitted)
        self.effects: Counter[str] = Counter()
        self.host = SimulatedHost(uplink=self.settings.uplink, on_effect=self._note)
        self.agent: Agent | None = None

    def start(self) -> str | None:
        """Start a new agent and wait until it accepts orders. Return an error message if the agent does not start."""
        halt = Halt()
        try:
            session = enrol_or_resume(self.settings, halt)
            self.agent = Agent(self.settings, session, self._build, self._timetable)
            self.agent.start(halt)
        except (EnrolmentRefused, OSError) as error:
            return f"{self.name} did not start: {error}"
        return None

    def stop(self) -> None:
        if self.agent is not None:
            self.agent.stop()

    def _build(self, settings: Settings, subnet: Ipv4Subnet, ended: Callable[[], None]) -> Host:
        return assemble_simulated_host(self.host, settings, subnet, ended)

    def _note(self, effect: str, of: str) -> None:
        self.effects[f"{effect} {of}".rstrip()] += 1


class FailedThreads:
    """Threads of this process that ended with an exception, as error messages."""

    def __init__(self) -> None:
        self.found: list[str] = []
        threading.excepthook = self._record

    def _record(self, how: threading.ExceptHookArgs) -> None:
        name = how.thread.name if how.thread else "unknown"
        self.found.append(f"thread {name} ended with an exception: {how.exc_value!r}")


def start_all(nodes: Sequence[HostedNode], at_once: int) -> list[str]:
    """Start simulated nodes, `at_once` at the same time. Return the error messages of nodes that did not start."""
    with ThreadPoolExecutor(at_once) as threads:
        return [error for error in threads.map(lambda node: node.start(), nodes) if error]


def serve(answers: Callable[[HostingSettings, Iterator[str]], Iterator[msgspec.Struct]]) -> None:
    """Run the hosting process: pass the settings and instructions from standard input to `answers`, print its answers.

    `answers` gets the settings from the first line and an iterator of the later lines, and yields an answer to each.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    lines = iter(sys.stdin.readline, "")
    hosting = msgspec.json.decode(next(lines), type=HostingSettings)
    with Path(hosting.log).open("a", encoding="utf-8") as log:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(_WARNING),
            logger_factory=structlog.PrintLoggerFactory(log),
        )
        for answer in answers(hosting, lines):
            sys.stdout.write(f"{msgspec.json.encode(answer).decode()}\n")
            sys.stdout.flush()
    # Exit without returning: an ordinary exit would wait for threads that still block.
    os._exit(0)


def _settings(hosting: HostingSettings, admitted: Admitted) -> Settings:
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
