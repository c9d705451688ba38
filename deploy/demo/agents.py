"""Process with the agents of the demo fleet: each with its own session, queue and host, which exists in memory.

    python -m deploy.demo.agents CONFIG

The configuration lists the nodes. SIGTERM ends all agents. As a power cut does, the end of the process ends all slices;
its next start creates them again.
"""

import gc
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import structlog

from deploy.demo.devices import slots_of
from deploy.demo.hosting import HostedNode, Hosting
from node_agent.lab.simulated.node import simulated_host
from node_agent.runtime.halt import Halt
from node_agent.runtime.timetable import Timetable
from node_agent.settings import Settings
from node_agent.transport.enrol import EnrolmentRefused, enrol_or_resume
from node_agent.wiring import Agent

log = structlog.get_logger()
_AT_ONCE: Final = 4
"""Nodes that start or stop at the same time."""
_WARNING: Final = 30
_GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Thresholds of `gc`: most objects live as long as the process."""
_SURVEY_SECONDS: Final = 60.0


def settings_of(hosting: Hosting, hosted: HostedNode) -> Settings:
    """Return the settings of a node's agent."""
    folder = Path(hosted.folder)
    return Settings.model_validate(
        {
            "node_id": hosted.node.name,
            "api_url": hosting.api_url,
            "ca_file": hosting.ca_file,
            "enrolment_token_file": hosted.token_file,
            "state_folder": folder / "agent",
            "run_folder": folder / "run",
            "images_folder": folder / "images",
            "slots": slots_of(hosted.node),
            "survey_seconds": _SURVEY_SECONDS,
            "simulated": {"boot_seconds": 1.0},
        }
    )


def _started(hosting: Hosting, node: HostedNode, timetable: Timetable) -> Agent | None:
    settings, halt = settings_of(hosting, node), Halt()
    try:
        agent = Agent(settings, enrol_or_resume(settings, halt), simulated_host, timetable)
        agent.start(halt)
    except (EnrolmentRefused, OSError) as error:
        log.warning("simulated_agent_not_started", node=node.node.name, error=str(error))
        return None
    return agent


def main(path: Path) -> None:
    """Run the agents of all nodes until SIGTERM."""
    gc.set_threshold(*_GC_THRESHOLDS)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_WARNING))
    hosting = msgspec.json.decode(path.read_bytes(), type=Hosting)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with Timetable() as timetable, ThreadPoolExecutor(_AT_ONCE) as at_once:
        agents = [*at_once.map(lambda node: _started(hosting, node, timetable), hosting.nodes)]
        ended.wait()
        [*at_once.map(lambda agent: agent and agent.stop(), agents)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
