"""The node as a whole: made fit to carry slices, and described to the control plane when the description changed.

What a node lacks is reported and never fatal: slices that run go on running, and the next survey tries again.
"""

import socket

import structlog

from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.reporter import Reporter
from node_agent.settings import Settings, SlotSettings
from node_agent.slices import HostUnreadable, tap_of
from node_agent.steps import StepFailed, run_steps
from node_agent.version import agent_version
from tasks.fields import line
from tasks.reports import MOST_IMAGES, FoundSlot, NodeSurveyed

log = structlog.get_logger(__name__)


class Inspection:
    """Used by one thread at a time."""

    def __init__(self, settings: Settings, host: Host, reporter: Reporter) -> None:
        self._settings, self._host, self._reporter = settings, host, reporter
        self._last: NodeSurveyed | None = None

    def inspect(self, halt: Halt) -> None:
        """Make good what the node as a whole lacks, and report it if it differs. Raises `Halted`, `OSError`."""
        missing = (*self._prepare(halt), *self._missing())
        found = self._describe(missing)
        if found != self._last:
            self._reporter.tell(found)
            log.info("node_surveyed", missing=missing)
            self._last = found

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


def _found(slot: SlotSettings) -> FoundSlot:
    return FoundSlot(
        index=slot.index, vcpus=slot.vcpus, memory_mib=slot.memory_mib, network_device=tap_of(slot.index)
    )
