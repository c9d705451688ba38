"""The machine aspect: one libvirt domain per slice, and the folder with the files that the domain boots from.

A domain is transient. After a reboot of the host the agent creates it again; it keeps running without the agent.
The root disk is on a file system that survives a reboot of the host, and is created before the domain starts. Its name
contains the guest's UUID too. A machine that is stopped and started, or lost by a reboot, gets its root disk again.

The seed is written before the domain starts, and its name contains the guest's UUID, so that the folder of a slot
identifies its tenant: a folder without the desired seed is another tenant's or incomplete, and is wiped first.

Each PCI function is noted in the folder before the domain gets it, so that it is reset even after a crash or a change
of the settings; the folder is deleted when all functions are reset.

A crash between two changes leaves one of: no folder, a folder without its seed, a seed without the notes of all PCI
functions, a complete folder without a domain, a domain. The plan continues from each of them. If libvirt loses its
state, QEMU can outlive its domain and still hold the tap: such a process is a stray and is ended as a domain is
destroyed.

Before a folder is wiped, the end of its guest's serial log is copied to the logs that the node keeps, so that the log
of a slice that did not boot can be read after its removal. The kept log belongs to the node and not to the slot.
"""

from collections.abc import Callable, Iterable
from typing import assert_never
from uuid import UUID

import structlog

from events.values import AllocationId, PciAddress
from node_agent.aspects.gpu_partitions import FabricManager, GpuPartition, partition_of
from node_agent.aspects.hypervisors import Disks, Hypervisor, KeptLogs, RootDisks
from node_agent.aspects.machine_drift import describe_domain, describe_process, difference
from node_agent.aspects.machine_plans import (
    ActivatePartition,
    Change,
    CheckDevices,
    Continue,
    DeactivatePartition,
    Destroy,
    EndStray,
    FetchImage,
    Found,
    FoundDomain,
    FoundProcess,
    MakeRootDisk,
    NoteDevice,
    Pin,
    Removal,
    ResetDevice,
    Resume,
    Start,
    WipeDisks,
    WipeRootDisk,
    WriteSeed,
    noted,
    plan,
    plan_removal,
    plan_stop,
    root_disk_name,
    seed_name,
    seeded_guests,
)
from node_agent.aspects.passthrough import PciBus, bind, devices_in_use, numa_mismatches, objections, reset
from node_agent.aspects.seed import seed_image
from node_agent.host.guests import Accelerator, Guest, Hosting, guest_for, guest_uuid
from node_agent.host.host import Console, ConsoleRefused, ObservedMachine
from node_agent.host.host_resources import ANYWHERE, Place, Places, place_for
from node_agent.host.images import Images
from node_agent.host.slices import Difference, HostRefused, HostUnreadable, Slice, SliceNetwork, Step
from node_agent.host.snapshots import StartedRead, invalidate_reads, look, start_reading
from tasks.orders import RootDisk
from tasks.streams import MAX_KEPT_LOG

log = structlog.get_logger(__name__)


class Domains:
    """All libvirt domains of a host, indexed by name, UUID, tap and MAC, so that the domains of one slot are found
    quickly.
    """

    def __init__(self, domains: Iterable[FoundDomain]) -> None:
        self._names = set[str]()
        self._by_key: dict[str | UUID, list[FoundDomain]] = {}
        for domain in domains:
            self._names.add(domain.name)
            # A foreign domain belongs to a slot only by its name.
            interfaces = domain.interfaces if domain.guest is not None else ()
            keys: set[str | UUID] = {domain.name, domain.uuid, *interfaces}
            for key in keys:
                self._by_key.setdefault(key, []).append(domain)

    def has_name(self, name: str) -> bool:
        """Whether a libvirt domain of the host has this name."""
        return name in self._names

    def of(self, network: SliceNetwork, uuid: UUID | None) -> tuple[FoundDomain, ...]:
        """Return the libvirt domains that the agent may destroy for a slot.

        These domains have the slot's name or the given UUID, or are guests of this program with the slot's tap or MAC.
        """
        keys = (network.tap, network.mac, *((uuid,) if uuid is not None else ()))
        found = (domain for key in keys for domain in self._by_key.get(key, ()))
        return tuple({domain.uuid: domain for domain in found}.values())


class Machines:
    """Aspect `machine` of all slots: libvirt domains and their files. `offload`: guests leave checksums and
    segmentation to the host.

    `is_plugged` returns whether a process holds a tap, or raises `HostUnreadable`; it is not called for a machine that
    has a virtual function instead of a tap. `places` are the host resources that are assigned to each slot's machine.
    """

    name = "machine"

    def __init__(
        self,
        hypervisor: Hypervisor,
        disks: Disks,
        root_disks: RootDisks,
        images: Images,
        accelerator: Accelerator,
        *,
        kept_logs: KeptLogs,
        offload: bool,
        is_plugged: Callable[[str], bool],
        bus: PciBus,
        places: Places,
        fabric_manager: FabricManager,
    ) -> None:
        self._bus, self._places = bus, places
        self._fabric_manager = fabric_manager
        self._hypervisor, self._disks, self._images = hypervisor, disks, images
        self._root_disks, self._kept_logs = root_disks, kept_logs
        self._domains_key = (hypervisor, "domains")
        self._is_plugged = is_plugged
        self._accelerator, self._offload = accelerator, offload

    def check(self) -> None:
        """Check that the hypervisor answers. Raises `HostUnreadable` if it does not."""
        self._domains()

    def start_reading(self, begin: Callable[[], StartedRead]) -> None:
        """Call `begin` to start listing the domains, so that a survey has the list when it inspects its first slot."""
        start_reading(self._domains_key, begin)

    def inspect(self, network: SliceNetwork) -> ObservedMachine | None:
        """Return the state of the libvirt domain that has the slot's name, even if another program created it; None if
        there is no such domain. Raises `HostUnreadable`.
        """
        found = next((each for each in self._all_domains() if each.name == network.tap), None)
        if found is None:
            return None
        guest = found.guest
        return ObservedMachine(
            found.state, guest.vcpus if guest else None, guest.memory_mib if guest else None
        )

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        guest = guest_for(wanted, place_for(wanted, self._places))
        found = self._find(wanted.network, guest.uuid)
        return tuple(
            self._step(change, wanted, difference(change, guest, found)) for change in plan(guest, found)
        )

    def runs(self, network: SliceNetwork) -> bool:
        """Whether a guest of the slot runs or is paused, or a QEMU process without a domain exists.

        Raises `HostUnreadable`.
        """
        found = self._find(network)
        return bool(found.strays) or any(domain.state != "stopped" for domain in found.domains)

    def to_shut_down(self, network: SliceNetwork) -> tuple[Step, ...]:
        """Return the steps that request the slot's guests to shut down; empty if none runs.

        Raises `HostUnreadable`.
        """
        running = (each for each in self._find(network).domains if each.state == "running")
        return tuple(self._shutdown_step(domain) for domain in running)

    def to_stop(self, stopped: SliceNetwork) -> tuple[Step, ...]:
        return tuple(self._removal_step(change) for change in plan_stop(self._find(stopped)))

    def still_on(self, stopped: SliceNetwork) -> tuple[str, ...]:
        # Foreign domains count too: a slot is neither off nor free while another program uses its tap or MAC.
        domains = [domain for domain in self._all_domains() if _touches(domain, stopped)]
        processes = _named(look((self._hypervisor, "processes"), self._hypervisor.processes), stopped.tap)
        return (
            *map(describe_domain, domains),
            *map(describe_process, processes),
            *(
                f"partition {each.number} of the fabric manager"
                for each in self._partitions(stopped)
                if each.active
            ),
        )

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        changes = plan_removal(gone.tap, self._find(gone))
        return tuple(self._removal_step(change) for change in changes)

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        return (
            *self.still_on(gone),
            *self._devices_held(gone),
            *(f"file {name}" for name in self._disks.found(gone.tap)),
            *(f"root disk file {name}" for name in self._root_disks.found(gone.tap)),
        )

    def serial_log(self, slot: SliceNetwork, allocation: AllocationId, most: int) -> tuple[bytes, int] | None:
        """Return the last `most` bytes of the serial output of a slot's machine, and the size of the whole log; None if
        the slot has no machine of the allocation, running or not, and no log of it is kept. Raises `HostUnreadable`.
        """
        guest = guest_uuid(allocation, slot.tap)
        if self._owner(slot.tap) == guest:
            found = self._disks.read_log(_log_name(slot.tap), most)
            # If the slice was removed meanwhile, the log may be incomplete, or that of the slot's next tenant.
            if self._owner(slot.tap) == guest:
                return found
        return self._kept_logs.find(slot.tap, guest, most)

    def delete_expired_logs(self) -> None:
        """Delete the logs of removed slices that have been kept for the maximum time. Raises `HostRefused`."""
        self._kept_logs.delete_expired()

    def _owner(self, slot: str) -> UUID | None:
        """Return the UUID of the guest that has its files in a slot's folder; None if it is not known."""
        # The name of a seed contains the UUID of its guest.
        guests = seeded_guests(self._disks.found(slot))
        return next(iter(guests)) if len(guests) == 1 else None

    def _wipe_disks(self, slot: str) -> None:
        try:
            if (guest := self._owner(slot)) is not None:
                self._kept_logs.keep(slot, guest, *self._disks.read_log(_log_name(slot), MAX_KEPT_LOG))
        except (HostRefused, HostUnreadable) as error:
            # The slot has to become free although its log is lost.
            log.warning("serial_log_not_kept", slot=slot, reason=str(error))
        self._disks.wipe(slot)

    def open_console(self, slot: SliceNetwork, allocation: AllocationId) -> Console:
        """Open the serial console of a slot's running machine. Raises `ConsoleRefused` if the slot has no running
        machine of the allocation, and `HostUnreadable`.
        """
        return self._hypervisor.open_console(self._running(slot, allocation))

    def open_display(self, slot: SliceNetwork, allocation: AllocationId) -> Console:
        """Open the display of a slot's running machine. Raises like `open_console`."""
        return self._hypervisor.open_display(self._running(slot, allocation))

    def open_ssh(self, slot: SliceNetwork, allocation: AllocationId) -> Console:
        """Open a connection to the SSH port of a slot's running machine. Raises like `open_console`."""
        return self._hypervisor.open_ssh(self._running(slot, allocation), slot)

    def _running(self, slot: SliceNetwork, allocation: AllocationId) -> UUID:
        uuid = guest_uuid(allocation, slot.tap)
        own = [each for each in self._hypervisor.domains() if each.uuid == uuid and each.guest is not None]
        if not own:
            raise ConsoleRefused("machine_not_running", f"no machine of {allocation} runs in {slot.tap}")
        return uuid

    def hosting(self, guest: Guest, root_disk: RootDisk | None = None) -> Hosting:
        """Return the guest's files and settings on this node. Raises `HostRefused` if the node lacks its image."""
        boot = (
            self._images.find(guest.image)
            if root_disk is None
            else self._root_disks.boot(root_disk_name(guest), root_disk)
        )
        return Hosting(
            boot=boot,
            seed=self._disks.path(seed_name(guest)),
            console=self._disks.path(_log_name(guest.name)),
            accelerator=self._accelerator,
            offload=self._offload,
            bars=self._bus.bars(guest.place.addresses),
        )

    def _find(self, network: SliceNetwork, uuid: UUID | None = None) -> Found:
        domains, strays = self._domains(), tuple[FoundProcess, ...]()
        if not domains.has_name(network.tap):
            processes, domains = look(
                (self._hypervisor, "processes, then domains"), self._processes_and_domains
            )
            strays = () if domains.has_name(network.tap) else _named(processes, network.tap)
        return Found(
            domains=domains.of(network, uuid),
            strays=strays,
            files=self._disks.found(network.tap),
            plugged=self._place(network).vf is not None or self._is_plugged(network.tap),
            process=self._process(network),
            root_disk_files=self._root_disks.found(network.tap),
            partitions=self._partitions(network),
        )

    def _partitions(self, network: SliceNetwork) -> tuple[GpuPartition, ...]:
        """Return the partitions with a GPU of the slot, or with one that its machine may have used."""
        gpus = {*self._place(network).of("gpu"), *noted(self._disks.found(network.tap))}
        if not gpus:
            return ()
        every = look((self._fabric_manager, "partitions"), self._fabric_manager.partitions)
        return tuple(each for each in every if not each.gpus.isdisjoint(gpus))

    def _process(self, network: SliceNetwork) -> FoundProcess | None:
        """Return the QEMU process of the slot's own machine, or None if the machine does not run."""
        own = next((each for each in self._all_domains() if each.name == network.tap), None)
        if own is None or own.guest is None or own.state == "stopped":
            return None
        return look((self._hypervisor, "process", network.tap), lambda: self._hypervisor.process(own))

    def _devices_held(self, network: SliceNetwork) -> tuple[str, ...]:
        place = self._place(network)
        if not place.devices:
            return ()
        return devices_in_use(place, self._bus.devices(), self._all_domains(), network.tap)

    def _place(self, network: SliceNetwork) -> Place:
        return self._places.get(network.index, ANYWHERE)

    def _check(self, guest: Guest) -> None:
        # Read the bus again: another program may have taken a device since the plan was made.
        invalidate_reads(self._bus)
        devices = self._bus.devices()
        for description in numa_mismatches(guest.place, devices):
            log.warning(
                "pci_device_and_slot_on_different_numa_nodes", machine=guest.name, mismatch=description
            )
        problems = objections(guest.name, guest.place, devices, self._hypervisor.domains())
        if problems:
            raise HostRefused("; ".join(problems))

    def _reset(self, address: PciAddress) -> None:
        invalidate_reads(self._bus)
        reset(address, self._bus, self._hypervisor.domains())

    def _activate_partition(self, guest: Guest) -> None:
        partitions = self._fabric_manager.partitions()
        self._fabric_manager.activate(partition_of(guest.place.of("gpu"), partitions).number)

    def _start(self, guest: Guest, wanted: Slice) -> None:
        bind(guest.place, self._bus)
        self._hypervisor.start(guest, self.hosting(guest, wanted.machine.root_disk))

    def _domains(self) -> Domains:
        return look((self._hypervisor, "domains by name"), lambda: Domains(self._all_domains()))

    def _all_domains(self) -> tuple[FoundDomain, ...]:
        return look(self._domains_key, self._hypervisor.domains)

    def _processes_and_domains(self) -> tuple[tuple[FoundProcess, ...], Domains]:
        """Return the QEMU processes and libvirt domains of the host, with the processes read first.

        In the reverse order, the process of a domain started in between would look like a process without a domain.
        """
        processes = self._hypervisor.processes()
        return processes, Domains(self._hypervisor.domains())

    def _shutdown_step(self, domain: FoundDomain) -> Step:
        return Step("machine.shut_down", lambda: self._hypervisor.shut_down(domain.uuid))

    def _step(self, change: Change, wanted: Slice, drift: Difference) -> Step:
        match change:
            case WriteSeed(name):
                return Step("machine.write_seed", lambda: self._disks.write(name, _seed(wanted)), drift)
            case FetchImage() | MakeRootDisk():
                return self._root_disk_step(change, _disk_of(wanted), drift)
            case Start(guest):
                return Step("machine.start", lambda: self._start(guest, wanted), drift)
            case Resume(domain):
                return Step("machine.resume", lambda: self._hypervisor.resume(domain.uuid), drift)
            case Continue(process):
                return Step("machine.resume", lambda: self._hypervisor.continue_process(process), drift)
            case CheckDevices() | NoteDevice() | ActivatePartition():
                return self._device_step(change, drift)
            case Pin(domain, pins):
                return Step("machine.pin", lambda: self._hypervisor.pin(domain.uuid, pins), drift)
            case (
                Destroy() | EndStray() | DeactivatePartition() | ResetDevice() | WipeDisks() | WipeRootDisk()
            ):
                return self._removal_step(change, drift)
            case _:
                assert_never(change)

    def _device_step(self, change: CheckDevices | NoteDevice | ActivatePartition, drift: Difference) -> Step:
        match change:
            case CheckDevices(guest):
                return Step("machine.check_devices", lambda: self._check(guest), drift)
            case NoteDevice(name, address):
                return Step("machine.note_device", lambda: self._disks.write(name, address.encode()), drift)
            case ActivatePartition(guest):
                return Step("machine.activate_partition", lambda: self._activate_partition(guest), drift)
            case _:
                assert_never(change)

    def _root_disk_step(self, change: FetchImage | MakeRootDisk, disk: RootDisk, drift: Difference) -> Step:
        match change:
            case FetchImage():
                return Step("machine.fetch_image", lambda: self._root_disks.fetch(disk), drift)
            case MakeRootDisk(name):
                return Step("machine.make_root_disk", lambda: self._root_disks.make(name, disk), drift)
            case _:
                assert_never(change)

    def _removal_step(self, change: Removal, drift: Difference | None = None) -> Step:
        match change:
            case Destroy(domain):
                return Step("machine.destroy", lambda: self._hypervisor.destroy(domain.uuid), drift)
            case EndStray(process):
                return Step("machine.end_stray", lambda: self._hypervisor.end(process), drift)
            case DeactivatePartition(number):
                deactivate = self._fabric_manager.deactivate
                return Step("machine.deactivate_partition", lambda: deactivate(number), drift)
            case ResetDevice(address):
                return Step("machine.reset_device", lambda: self._reset(address), drift)
            case WipeDisks(slot):
                return Step("machine.wipe_disks", lambda: self._wipe_disks(slot), drift)
            case WipeRootDisk(slot):
                return Step("machine.wipe_root_disk", lambda: self._root_disks.wipe(slot), drift)
            case _:
                assert_never(change)


def _seed(wanted: Slice) -> bytes:
    machine = wanted.machine
    instance = str(guest_for(wanted).uuid)
    return seed_image(machine.hostname, machine.ssh_authorized_keys, instance, machine.user_data)


def _log_name(slot: str) -> str:
    return f"{slot}/console.log"


def _disk_of(wanted: Slice) -> RootDisk:
    disk = wanted.machine.root_disk
    assert disk is not None, "the plan of a guest without a root disk must not create one"
    return disk


def _touches(domain: FoundDomain, network: SliceNetwork) -> bool:
    return domain.name == network.tap or not {network.tap, network.mac}.isdisjoint(domain.interfaces)


def _named(processes: tuple[FoundProcess, ...], name: str) -> tuple[FoundProcess, ...]:
    return tuple(process for process in processes if process.name == name)
