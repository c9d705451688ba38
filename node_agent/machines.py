"""The machine aspect: one libvirt domain per slice, and the folder that holds what it boots from.

A domain is transient. After a host's reboot the agent makes it again; while the agent is away, it just runs.
The seed is written before the domain starts and carries the guest's UUID in its name, so that a slot's folder
tells whose it is: a folder without the wanted seed is another tenant's or half made, and is wiped first.

Each PCI function is noted in the folder before the domain gets it, so that it is reset whatever died and whatever the
settings say by then; the folder goes when all of them are.

A crash between two changes leaves one of: no folder, a folder without its seed or a note, a seed without a domain,
a domain. The plan goes on from each. QEMU can outlive its domain if libvirt lost its state, and then holds the
tap: such a process is a stray and is ended like a domain.
"""

from collections.abc import Callable, Iterable
from typing import assert_never
from uuid import UUID

import structlog

from events.values import PciAddress
from node_agent.guests import Accelerator, Guest, Hosting, guest_for
from node_agent.host import MachineSeen
from node_agent.hypervisors import Disks, Hypervisor
from node_agent.images import Images
from node_agent.looks import Begun, look, look_again, look_ahead
from node_agent.machine_drift import difference, domain_words, process_words
from node_agent.machine_plans import (
    Change,
    CheckDevices,
    Continue,
    Destroy,
    EndStray,
    Found,
    FoundDomain,
    FoundProcess,
    NoteDevice,
    Pin,
    Removal,
    ResetDevice,
    Resume,
    Start,
    WipeDisks,
    WriteSeed,
    plan,
    plan_removal,
    plan_stop,
    seed_name,
)
from node_agent.passthrough import PciBus, far_from, not_let_go, objections, reset
from node_agent.places import ANYWHERE, Place, Places, place_for
from node_agent.seed import seed_image
from node_agent.slices import Difference, HostRefused, Slice, SliceNetwork, Step

log = structlog.get_logger(__name__)


class Domains:
    """All of a host, by what a slot asks for them: a host has many slots, and each asks for its own."""

    def __init__(self, domains: Iterable[FoundDomain]) -> None:
        self._names = set[str]()
        self._by_key: dict[str | UUID, list[FoundDomain]] = {}
        for domain in domains:
            self._names.add(domain.name)
            # What another program made is a slot's by its name alone.
            its = domain.interfaces if domain.guest is not None else ()
            keys: set[str | UUID] = {domain.name, domain.uuid, *its}
            for key in keys:
                self._by_key.setdefault(key, []).append(domain)

    def knows(self, name: str) -> bool:
        """Whether a domain is called so."""
        return name in self._names

    def of(self, network: SliceNetwork, uuid: UUID | None) -> tuple[FoundDomain, ...]:
        """Ours to destroy: by the slot's name or this UUID, or a guest of ours with the slot's tap or MAC."""
        keys = (network.tap, network.mac, *((uuid,) if uuid is not None else ()))
        found = (domain for key in keys for domain in self._by_key.get(key, ()))
        return tuple({domain.uuid: domain for domain in found}.values())


class Machines:
    """The aspect `machine` (`node_agent.slices.Aspect`). `offload` is explained at `Hosting`.

    `is_plugged` says whether a program holds a tap, or raises `HostUnreadable`; a machine that has a virtual function
    holds that. `places` is what each slot's machine has of its host for itself.
    """

    name = "machine"

    def __init__(
        self,
        hypervisor: Hypervisor,
        disks: Disks,
        images: Images,
        accelerator: Accelerator,
        *,
        offload: bool,
        is_plugged: Callable[[str], bool],
        bus: PciBus,
        places: Places,
    ) -> None:
        self._bus, self._places = bus, places
        self._hypervisor, self._disks, self._images = hypervisor, disks, images
        self._domains_of_this_look = (hypervisor, "domains")
        self._is_plugged = is_plugged
        self._accelerator, self._offload = accelerator, offload

    def check(self) -> None:
        """Raises `HostUnreadable` when the hypervisor does not answer."""
        self._domains()

    def look_ahead(self, begin: Callable[[], Begun]) -> None:
        """Have the domains listed, as `begin` begins it, before the first slot of this look asks for them."""
        look_ahead(self._domains_of_this_look, begin)

    def inspect(self, network: SliceNetwork) -> MachineSeen | None:
        """The slot's machine, whoever made it. Raises `HostUnreadable`."""
        found = next((each for each in self._all_domains() if each.name == network.tap), None)
        if found is None:
            return None
        guest = found.guest
        return MachineSeen(found.state, guest.vcpus if guest else None, guest.memory_mib if guest else None)

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        guest = guest_for(wanted, place_for(wanted, self._places))
        found = self._look(wanted.network, guest.uuid)
        return tuple(
            self._step(change, wanted, difference(change, guest, found)) for change in plan(guest, found)
        )

    def runs(self, network: SliceNetwork) -> bool:
        """Whether anything runs that is the slot's, paused guests and stray processes too. Raises `HostUnreadable`."""
        found = self._look(network)
        return bool(found.strays) or any(domain.state != "stopped" for domain in found.domains)

    def to_shut_down(self, network: SliceNetwork) -> tuple[Step, ...]:
        """Steps that ask the slot's guest to shut down; empty when none runs. Raises `HostUnreadable`."""
        running = (each for each in self._look(network).domains if each.state == "running")
        return tuple(self._asking(domain) for domain in running)

    def to_stop(self, stopped: SliceNetwork) -> tuple[Step, ...]:
        return tuple(self._removal_step(change) for change in plan_stop(self._look(stopped)))

    def still_on(self, stopped: SliceNetwork) -> tuple[str, ...]:
        # Taken whole, foreigners included: a slot whose tap or MAC somebody else uses is neither off nor free.
        domains = [domain for domain in self._all_domains() if _touches(domain, stopped)]
        processes = _named(look((self._hypervisor, "processes"), self._hypervisor.processes), stopped.tap)
        return (
            *map(domain_words, domains),
            *map(process_words, processes),
        )

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        changes = plan_removal(gone.tap, self._look(gone))
        return tuple(self._removal_step(change) for change in changes)

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        return (
            *self.still_on(gone),
            *self._devices_held(gone),
            *(f"file {name}" for name in self._disks.found(gone.tap)),
        )

    def hosting(self, guest: Guest) -> Hosting:
        """Where this node would keep it. Raises `HostRefused` when it has no such image."""
        return Hosting(
            image=self._images.find(guest.image),
            seed=self._disks.path(seed_name(guest)),
            console=self._disks.path(f"{guest.name}/console.log"),
            accelerator=self._accelerator,
            offload=self._offload,
        )

    def _look(self, network: SliceNetwork, uuid: UUID | None = None) -> Found:
        domains, strays = self._domains(), tuple[FoundProcess, ...]()
        if not domains.knows(network.tap):
            processes, domains = look((self._hypervisor, "processes, then domains"), self._both)
            strays = () if domains.knows(network.tap) else _named(processes, network.tap)
        return Found(
            domains=domains.of(network, uuid),
            strays=strays,
            files=self._disks.found(network.tap),
            plugged=self._place(network).vf is not None or self._is_plugged(network.tap),
            process=self._process(network),
        )

    def _process(self, network: SliceNetwork) -> FoundProcess | None:
        """The process of the slot's own machine, where that has one."""
        own = next((each for each in self._all_domains() if each.name == network.tap), None)
        if own is None or own.guest is None or own.state == "stopped":
            return None
        return look((self._hypervisor, "process", network.tap), lambda: self._hypervisor.process(own))

    def _devices_held(self, network: SliceNetwork) -> tuple[str, ...]:
        place = self._place(network)
        if not place.devices:
            return ()
        return not_let_go(place, self._bus.devices(), self._all_domains(), network.tap)

    def _place(self, network: SliceNetwork) -> Place:
        return self._places.get(network.index, ANYWHERE)

    def _check(self, guest: Guest) -> None:
        # Not what the plan saw: another program may have taken one meanwhile.
        look_again(self._bus)
        devices = self._bus.devices()
        for words in far_from(guest.place, devices):
            log.warning("device_far", machine=guest.name, found=words)
        against = objections(guest.name, guest.place, devices, self._hypervisor.domains())
        if against:
            raise HostRefused("; ".join(against))

    def _reset(self, address: PciAddress) -> None:
        look_again(self._bus)
        reset(address, self._bus, self._hypervisor.domains())

    def _domains(self) -> Domains:
        return look((self._hypervisor, "domains by name"), lambda: Domains(self._all_domains()))

    def _all_domains(self) -> tuple[FoundDomain, ...]:
        return look(self._domains_of_this_look, self._hypervisor.domains)

    def _both(self) -> tuple[tuple[FoundProcess, ...], Domains]:
        """The domains after the processes, or one born in between would look like a stray."""
        processes = self._hypervisor.processes()
        return processes, Domains(self._hypervisor.domains())

    def _asking(self, domain: FoundDomain) -> Step:
        return Step("machine.shut_down", lambda: self._hypervisor.shut_down(domain.uuid))

    def _step(self, change: Change, wanted: Slice, mends: Difference) -> Step:
        match change:
            case WriteSeed(name):
                return Step("machine.write_seed", lambda: self._disks.write(name, _seed(wanted)), mends)
            case Start(guest):
                return Step(
                    "machine.start", lambda: self._hypervisor.start(guest, self.hosting(guest)), mends
                )
            case Resume(domain):
                return Step("machine.resume", lambda: self._hypervisor.resume(domain.uuid), mends)
            case Continue(process):
                return Step("machine.resume", lambda: self._hypervisor.continue_process(process), mends)
            case CheckDevices(guest):
                return Step("machine.check_devices", lambda: self._check(guest), mends)
            case NoteDevice(name, address):
                return Step("machine.note_device", lambda: self._disks.write(name, address.encode()), mends)
            case Pin(domain, pins):
                return Step("machine.pin", lambda: self._hypervisor.pin(domain.uuid, pins), mends)
            case Destroy() | EndStray() | ResetDevice() | WipeDisks():
                return self._removal_step(change, mends)
            case _:
                assert_never(change)

    def _removal_step(self, change: Removal, mends: Difference | None = None) -> Step:
        match change:
            case Destroy(domain):
                return Step("machine.destroy", lambda: self._hypervisor.destroy(domain.uuid), mends)
            case EndStray(process):
                return Step("machine.end_stray", lambda: self._hypervisor.end(process), mends)
            case ResetDevice(address):
                return Step("machine.reset_device", lambda: self._reset(address), mends)
            case WipeDisks(slot):
                return Step("machine.wipe_disks", lambda: self._disks.wipe(slot), mends)
            case _:
                assert_never(change)


def _seed(wanted: Slice) -> bytes:
    told = wanted.machine
    return seed_image(told.hostname, told.ssh_authorized_keys, str(guest_for(wanted).uuid))


def _touches(domain: FoundDomain, network: SliceNetwork) -> bool:
    return domain.name == network.tap or not {network.tap, network.mac}.isdisjoint(domain.interfaces)


def _named(processes: tuple[FoundProcess, ...], name: str) -> tuple[FoundProcess, ...]:
    return tuple(process for process in processes if process.name == name)
