"""The node as a whole: made fit to carry slices, and described to the control plane when the description changed.

What was said last stands on disk, so that an agent that starts again has nothing to say where nothing changed: a fleet
that restarts would otherwise be described anew at once. It is said again under a new enrolment, and when either side
may have forgotten. A crash between saying and writing it down says it twice.

What a node lacks is reported and never fatal: slices that run go on running, and the next survey tries again.
"""

import socket
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import structlog
from pydantic import ValidationError

from events.values import PciAddress
from node_agent.devices import lost_devices
from node_agent.drift import NODE, Drifts, differences, merged, unreadable
from node_agent.durable import replace_file
from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.pci import PciDevice, PciDevices
from node_agent.places import USES, Use
from node_agent.reporter import Reporter
from node_agent.settings import Settings, SlotSettings
from node_agent.slices import Difference, HostUnreadable, tap_of
from node_agent.steps import StepFailed, run_steps
from node_agent.version import agent_version
from tasks.failpoints import failpoint
from tasks.fields import Wire, line
from tasks.reports import MOST_IMAGES, FoundDevice, FoundSlot, NodeSurveyed

log = structlog.get_logger(__name__)


class Told(Wire):
    """`described.json`: what the control plane was told last, under the enrolment by the token of that hash."""

    token_sha256: str
    said: NodeSurveyed


class Inspection:
    """Used by one thread at a time, but for `describe` and `doubt`. `enrolment` tells the hash of the token that was
    enrolled with.
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
        self._is_made = self._last is not None
        if self._last is not None:
            own = {None, *(slot.index for slot in settings.slots)}
            drifts.remember(each for each in self._last.said.drift if each.slot in own)
        self._doubted = threading.Event()
        self._describing = threading.Lock()
        self._pci: PciDevices | None = None
        """As they could be seen last; None: not yet."""
        told = self._last.said.slots if self._last is not None else ()
        self._told = {(each.use, each.address): each for slot in told for each in slot.devices}
        """The functions that a slot had when the agent ended."""

    def prepare(self, halt: Halt) -> tuple[Difference, ...]:
        """Make good what the node as a whole lacks; what was found lacking. Raises `Halted`."""
        found: tuple[Difference, ...] = ()
        self._host.look_ahead()
        try:
            steps = self._host.gateway.to_apply()
            found = differences(steps)
            run_steps(steps, halt)
        except (StepFailed, HostUnreadable) as failure:
            log.warning("node_not_prepared", reason=str(failure))
        return found

    def tell(self, found: tuple[Difference, ...], unread: Collection[HostUnreadable]) -> None:
        """Report what became of what was found, and the node if it is another than was told. Raises `OSError`.

        `unread` is what kept others from looking at their part of the host.
        """
        self._note(found, [*map(unreadable, unread), *self._look_at_devices()])
        self.describe()
        self._is_made = True

    def describe(self) -> None:
        """Report the node if it is another than was told. Raises `OSError`."""
        with self._describing:
            self._describe(Told(token_sha256=self._enrolment(), said=self._described()))

    def doubt(self) -> None:
        """Whatever was said may have been forgotten: the next look says it again."""
        self._doubted.set()

    def _describe(self, found: Told) -> None:
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

    def _note(self, found: tuple[Difference, ...], unread: list[Difference]) -> None:
        gateway = self._host.gateway
        try:
            left = (*differences(gateway.to_apply()), *gateway.lost(), *self._host.absent_devices())
        except HostUnreadable as why:
            # Nobody knows what became of what was found, nor of what was open.
            self._drifts.add(NODE, (*found, unreadable(why), *unread))
            return
        try:
            self._host.check_machines()
        except HostUnreadable as why:
            unread.append(unreadable(why))
        # What was never made was not lost.
        self._drifts.note(NODE, found if self._is_made else (), merged((*left, *unread)))

    def _look_at_devices(self) -> Iterator[Difference]:
        """Record drift that blocks slots whatever they carry, and yield why it could not be read. After a failed read,
        the last known drift stays open."""
        try:
            self._pci = devices = self._host.pci_devices()
            lost = lost_devices(self._places, devices)
            mirrored = self._host.gateway.mirrored()
            own = {slot.index for slot in self._settings.slots}
            self._drifts.lack(
                {
                    slot: (*lost.get(slot, ()), *((mirrored[slot],) if slot in mirrored else ()))
                    for slot in own & {*lost, *mirrored}
                }
            )
        except HostUnreadable as why:
            yield unreadable(why)

    def _images(self) -> tuple[str, ...]:
        try:
            names = tuple(self._host.images())
        except HostUnreadable as unreadable:
            log.warning("images_unreadable", reason=str(unreadable))
            return ()
        if len(names) > MOST_IMAGES:
            log.warning("images_left_out", names=names[MOST_IMAGES:])
        return names[:MOST_IMAGES]

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
        )

    def _device(self, use: Use, address: PciAddress) -> FoundDevice:
        if self._pci is None and (told := self._told.get((use, address))) is not None:
            return told
        found = self._pci.find(address) if self._pci is not None else None
        return _found_device(use, address, found if found is None or found.unread is None else None)


def _read(path: Path) -> Told | None:
    """None also for what cannot be read: then all is said again."""
    try:
        return Told.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        log.exception("description_unreadable", path=str(path))
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


def _found_device(use: Use, address: PciAddress, found: PciDevice | None) -> FoundDevice:
    return FoundDevice(
        address=address,
        use=use,
        number=found.number if found is not None else None,
        kind=found.kind if found is not None else None,
        numa_node=found.numa_node if found is not None else None,
    )
