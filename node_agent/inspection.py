"""The node as a whole: made fit to carry slices, and described to the control plane when the description changed.

What was said last stands on disk, so that an agent that starts again has nothing to say where nothing changed: a fleet
that restarts would otherwise be described anew at once. It is said again under a new enrolment, and when either side
may have forgotten. A crash between saying and writing it down says it twice.

What a node lacks is reported and never fatal: slices that run go on running, and the next survey tries again.
"""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import structlog
from pydantic import ValidationError

from node_agent.durable import replace_file
from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.reporter import Reporter
from node_agent.settings import Settings, SlotSettings
from node_agent.slices import HostUnreadable, tap_of
from node_agent.steps import StepFailed, run_steps
from node_agent.version import agent_version
from tasks.failpoints import failpoint
from tasks.fields import Wire, line
from tasks.reports import MOST_IMAGES, FoundSlot, NodeSurveyed

log = structlog.get_logger(__name__)


class Told(Wire):
    """`described.json`: what the control plane was told last, under the enrolment by the token of that hash."""

    token_sha256: str
    said: NodeSurveyed


class Inspection:
    """Used by one thread at a time, but for `doubt`. `enrolment` tells the hash of the token that was enrolled with."""

    def __init__(
        self, settings: Settings, host: Host, reporter: Reporter, enrolment: Callable[[], str]
    ) -> None:
        self._settings, self._host, self._reporter = settings, host, reporter
        self._enrolment = enrolment
        self._file = settings.state_folder / "described.json"
        self._last = _read(self._file)
        self._doubted = threading.Event()

    def inspect(self, halt: Halt) -> None:
        """Make good what the node as a whole lacks, and report it if it differs. Raises `Halted`, `OSError`."""
        missing = (*self._prepare(halt), *self._missing())
        self._tell(Told(token_sha256=self._enrolment(), said=self._describe(missing)))

    def doubt(self) -> None:
        """Whatever was said may have been forgotten: the next look says it again."""
        self._doubted.set()

    def _tell(self, found: Told) -> None:
        if self._doubted.is_set():
            # Before it is said: a doubt that comes meanwhile is another one.
            self._doubted.clear()
            self._last = None
        if found == self._last:
            return
        self._reporter.tell(found.said)
        failpoint("agent.described.before")
        # Not flushed: lost with the host, it is only said twice.
        replace_file(self._file, found.model_dump_json().encode(), durable=False)
        failpoint("agent.described.after")
        self._last = found
        log.info("node_surveyed", missing=found.said.missing)

    def _prepare(self, halt: Halt) -> tuple[str, ...]:
        try:
            run_steps(self._host.gateway.to_apply(), halt)
        except (StepFailed, HostUnreadable) as failure:
            log.warning("node_not_prepared", reason=str(failure))
            return (f"preparation: {failure}",)
        return ()

    def _missing(self) -> tuple[str, ...]:
        looked_at = (*self._host.gateway.prerequisites(), *self._host.devices())
        return tuple(each.detail for each in looked_at if not each.ok)

    def _images(self) -> tuple[str, ...]:
        try:
            names = tuple(self._host.images())
        except HostUnreadable as unreadable:
            log.warning("images_unreadable", reason=str(unreadable))
            return ()
        if len(names) > MOST_IMAGES:
            log.warning("images_left_out", names=names[MOST_IMAGES:])
        return names[:MOST_IMAGES]

    def _describe(self, missing: tuple[str, ...]) -> NodeSurveyed:
        return NodeSurveyed(
            hostname=socket.gethostname(),
            agent_version=agent_version(),
            simulated=self._settings.simulated is not None,
            images=self._images(),
            missing=tuple(line(each) for each in missing[:64]),
            slots=tuple(_found(slot) for slot in self._settings.slots),
        )


def _read(path: Path) -> Told | None:
    """None also for what cannot be read: then all is said again."""
    try:
        return Told.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        log.exception("description_unreadable", path=str(path))
        return None


def _found(slot: SlotSettings) -> FoundSlot:
    return FoundSlot(
        index=slot.index, vcpus=slot.vcpus, memory_mib=slot.memory_mib, network_device=tap_of(slot.index)
    )
