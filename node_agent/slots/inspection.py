"""Preparation of the node for slices, and reports that describe the node (images, slots, devices, open drift).

The node's description is reported when it changes. The last reported description is stored on disk, so that a restarted
agent reports nothing if nothing changed: otherwise all agents of a restarted fleet would report their descriptions at
once. The description is reported again after a new enrolment, and when the node or the control plane may have lost the
last one. A changed description is stored as not reported, then reported, then stored as reported. A crash in between
leads to a duplicate report, but the times at which drift began, which the description contains, are not lost.

A fault of the node is reported and never fatal: running slices keep running, and the next survey tries a repair again.
"""

import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog
from pydantic import ValidationError

from events.values import PciAddress
from node_agent.aspects.devices import lost_devices
from node_agent.host.device_facts import absent_device
from node_agent.host.drift import NODE, Drifts, differences, merged, unreadable
from node_agent.host.host import Host
from node_agent.host.host_resources import USES, Use
from node_agent.host.slices import Difference, HostUnreadable, tap_of
from node_agent.runtime.durable import replace_file
from node_agent.runtime.halt import Halt
from node_agent.runtime.version import agent_version
from node_agent.settings import Settings, SlotSettings
from node_agent.slots.steps import StepFailed, run_steps
from node_agent.transport.reporter import Reporter
from tasks.devices import FoundDevice
from tasks.failpoints import failpoint
from tasks.fields import Wire, line
from tasks.reports import MOST_IMAGES, FoundSlot, NodeSurveyed, UnsupportedMode

log = structlog.get_logger(__name__)
_NOT_REPORTED: Final = ""


class LastDescription(Wire):
    """Content of `described.json`: the newest description of the node.

    `token_sha256` is the hash of the one-time token with which the node was enrolled when it reported the description.
    The hash is empty unless the description is certain to have been reported.
    """

    token_sha256: str
    description: NodeSurveyed


class Inspection:
    """Preparation of one node for slices, and reports of the node's description.

    Only `describe` and `report_again` are thread-safe. `enrolment` returns the hash of the token with which the node
    enrolled.
    """

    def __init__(
        self,
        settings: Settings,
        host: Host,
        reporter: Reporter,
        drifts: Drifts,
        enrolment: Callable[[], str],
    ) -> None:
        self._settings, self._host, self._reporter, self._drifts = settings, host, reporter, drifts
        self._places = settings.places
        self._enrolment = enrolment
        self._file = settings.state_folder / "described.json"
        self._last = _read(self._file)
        self._was_prepared = self._last is not None
        """Whether the node was prepared before. Only then does a missing part count as drift."""
        if self._last is not None:
            own = {None, *(slot.index for slot in settings.slots)}
            drifts.restore(each for each in self._last.description.drift if each.slot in own)
        self._report_requested = threading.Event()
        self._describing = threading.Lock()
        reported = self._last.description.slots if self._last is not None else ()
        self._devices: Mapping[tuple[Use, PciAddress], FoundDevice] = {
            (each.use, each.address): each for slot in reported for each in slot.devices
        }
        """PCI functions of the slots, as they were read last; before the first read, as they were reported before the
        agent started."""

    def prepare(self, halt: Halt) -> tuple[Difference, ...]:
        """Repair the drift of the node as a whole, and return the drift that was found. Raises `Halted`."""
        found: tuple[Difference, ...] = ()
        self._host.start_reading()
        try:
            steps = self._host.gateway.to_apply()
            found = differences(steps)
            run_steps(steps, halt)
        except (StepFailed, HostUnreadable) as failure:
            log.warning("node_drift_not_repaired", reason=str(failure))
        return found

    def report(self, found: tuple[Difference, ...], unread: Collection[HostUnreadable]) -> None:
        """Report the result of a survey: the drift `found` before the repair, and the node's description if it changed.

        `unread` are the errors of other parts of the survey that could not read the host. Raises `OSError`.
        """
        self._record(found, [*map(unreadable, unread), *self._survey_devices()])
        self.describe()
        self._was_prepared = True

    def describe(self) -> None:
        """Report the node's description if it differs from the last reported description. Raises `OSError`."""
        with self._describing:
            self._describe(LastDescription(token_sha256=self._enrolment(), description=self._described()))

    def report_again(self) -> None:
        """Make the next survey report the node's description again, because the control plane may have lost it."""
        self._report_requested.set()

    def _describe(self, found: LastDescription) -> None:
        if self._report_requested.is_set():
            # Clear the flag before the report: if it is set again meanwhile, another report is required.
            self._report_requested.clear()
            self._last = None
        if found == self._last:
            return
        # Store it before the report: an agent killed after the report would otherwise restart without the times since
        # when drift is open, and would contradict the report.
        # Neither file is durable: if a crash of the host loses it, the description is only reported twice.
        failpoint("agent.description.before")
        unreported = found.model_copy(update={"token_sha256": _NOT_REPORTED})
        replace_file(self._file, unreported.model_dump_json().encode(), durable=False)
        self._reporter.report(found.description)
        failpoint("agent.described.before")
        replace_file(self._file, found.model_dump_json().encode(), durable=False)
        failpoint("agent.described.after")
        self._last = found
        log.info("node_description_reported", missing_prerequisites=found.description.missing)

    def _record(self, found: tuple[Difference, ...], unread: list[Difference]) -> None:
        gateway = self._host.gateway
        try:
            left = (*differences(gateway.to_apply()), *gateway.lost(), *self._host.absent_devices())
        except HostUnreadable as error:
            # It is unknown whether the drift that was found, or was open before, still exists.
            self._drifts.add(NODE, (*found, unreadable(error), *unread))
            return
        try:
            self._host.check_machines()
        except HostUnreadable as error:
            unread.append(unreadable(error))
        # On a node that is prepared for the first time, missing parts are not a drift.
        self._drifts.record(NODE, found if self._was_prepared else (), merged((*left, *unread)))

    def _survey_devices(self) -> Iterator[Difference]:
        """Record the drift that blocks slots regardless of their orders: lost PCI devices, and rules that copy frames.

        If the host cannot be read, yield the error as drift; the drift that was recorded earlier stays open.
        """
        try:
            devices = self._host.pci_devices()
            self._devices = self._host.describe_devices(devices)
            lost = lost_devices(self._places, devices)
            mirrored = self._host.gateway.mirrored()
            own = {slot.index for slot in self._settings.slots}
            self._drifts.record_blocking(
                {
                    slot: (*lost.get(slot, ()), *((mirrored[slot],) if slot in mirrored else ()))
                    for slot in own & {*lost, *mirrored}
                }
            )
        except HostUnreadable as error:
            yield unreadable(error)

    def _images(self) -> tuple[str, ...]:
        try:
            names = tuple(self._host.images())
        except HostUnreadable as unreadable:
            log.warning("image_list_unreadable", reason=str(unreadable))
            return ()
        if len(names) > MOST_IMAGES:
            log.warning("images_over_limit_omitted_from_node_description", names=names[MOST_IMAGES:])
        return names[:MOST_IMAGES]

    def _unsupported_modes(self) -> tuple[UnsupportedMode, ...]:
        try:
            found = self._host.gateway.unsupported_modes()
        except HostUnreadable as unreadable:
            # The last report stays true until the host can be read again.
            log.warning("supported_network_modes_unreadable", reason=str(unreadable))
            return () if self._last is None else self._last.description.unsupported_modes
        return tuple(UnsupportedMode(mode=mode, reason=line(found[mode])) for mode in sorted(found))

    def _described(self) -> NodeSurveyed:
        missing = self._host.gateway.missing()
        return NodeSurveyed(
            hostname=socket.gethostname(),
            agent_version=agent_version(),
            simulated=self._settings.simulated is not None,
            images=self._images(),
            missing=tuple(line(each) for each in missing[:64]),
            slots=tuple(_found(slot, self._device) for slot in self._settings.slots),
            drift=self._drifts.open(),
            # Without the programs, nothing can be checked: the node is closed for all modes.
            unsupported_modes=() if missing else self._unsupported_modes(),
        )

    def _device(self, use: Use, address: PciAddress) -> FoundDevice:
        return self._devices.get((use, address)) or absent_device(use, address)


def _read(path: Path) -> LastDescription | None:
    """Return the node's description that is stored on disk, or None if it is missing or unreadable.

    Without a stored description, the next survey reports the description again.
    """
    try:
        return LastDescription.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        log.exception("stored_node_description_unreadable", path=str(path))
        return None


def _found(slot: SlotSettings, device: Callable[[Use, PciAddress], FoundDevice]) -> FoundSlot:
    return FoundSlot(
        index=slot.index,
        vcpus=slot.vcpus,
        memory_mib=slot.memory_mib,
        network_device=tap_of(slot.index),
        devices=tuple(device(use, address) for use in USES for address in slot.place.of(use)),
        numa_node=slot.numa_node,
    )
