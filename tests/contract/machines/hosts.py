"""The two hosts on which the contract tests of virtual machines run: a lab node with its libvirt, and the simulated
host.
"""

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

from events.values import PciAddress
from node_agent.aspects.gpu_partitions import NoFabricManager
from node_agent.aspects.hypervisors import Disks, Hypervisor, KeptLogs, RootDisks
from node_agent.aspects.links import Tap
from node_agent.aspects.machine_plans import FoundDomain
from node_agent.aspects.machines import Machines
from node_agent.aspects.passthrough import PciBus
from node_agent.drivers.machines.disks import DisksFolder
from node_agent.drivers.machines.domain_xml import domain_xml
from node_agent.drivers.machines.kept_logs import KeptLogsFolder
from node_agent.drivers.machines.root_disks import RootDisksFolder
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.guests import Hosting, guest_for
from node_agent.host.host_resources import NO_PLACES, HostDevice, Place, Places
from node_agent.host.images import FixedImages, Image, Images, ImagesFolder, publish
from node_agent.host.snapshots import StartedRead
from node_agent.lab.guest import GuestImage
from node_agent.lab.lab import LabNode
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.links import SimulatedLinks
from node_agent.lab.simulated.machines import (
    SimulatedDisks,
    SimulatedHypervisor,
    SimulatedKeptLogs,
    SimulatedRootDisks,
)
from node_agent.lab.simulated.pci import SimulatedPci
from node_agent.settings import RootDiskSettings
from tasks.orders import RootDisk
from tests.node.guests import IMAGE, slice_on
from tests.node.images import LAB_GUEST
from tests.node.pci_trees import lay_out
from tests.servers.image_store import root_disk

HOSTING: Final = Hosting(
    LAB_GUEST, Path("/disks/slice0/seed.iso"), Path("/disks/slice0/console.log"), "qemu", offload=False
)
"""Files and options of a guest that tests only write as a domain definition; no machine is started with them."""
VIRSH: Final = ("virsh", "--quiet", "--connect", "qemu:///system")


@dataclass(frozen=True)
class Alteration:
    """Change that an operator makes to a running virtual machine, and the expected difference of its libvirt domain
    from the desired definition.

    `virsh` is the virsh command for the domain (`{file}` is a file that QEMU can read, `{mac}` the MAC of the machine's
    network card). Alternatively, `written` is replaced by `other` in the domain's XML, and the domain is created again
    from this XML.
    """

    strange: str
    virsh: str = ""
    written: str = ""
    other: str = ""


ALTERATIONS: Final = {
    "a disk is attached": Alteration("disk vdb", "attach-disk {domain} {file} vdb --mode readonly"),
    "its link is cut": Alteration("link down", "domif-setlink {domain} {mac} down"),
    "its disk is throttled": Alteration(
        "I/O limit (iotune) of disk vda", "blkdeviotune {domain} vda --total-iops-sec 5 --live"
    ),
    "its display listens": Alteration(
        "display vnc on 0.0.0.0",
        written="<listen type='none'/>",
        other="<listen type='address' address='0.0.0.0'/>",
    ),
    "it boots another kernel": Alteration(
        "another boot", written="<kernel>.*</kernel>", other="<kernel>{file}</kernel>"
    ),
    "it boots another file system": Alteration(
        "another boot", written="<initrd>.*</initrd>", other="<initrd>{file}</initrd>"
    ),
    "it has a channel to the host": Alteration(
        "channel",
        written="</devices>",
        other="<channel type='pty'><target type='virtio' name='out'/></channel></devices>",
    ),
}


@dataclass(frozen=True)
class Extension:
    """Device or setting that is added to a running machine through QEMU's monitor and that its libvirt domain does not
    show.
    """

    commands: tuple[str, ...]
    """Commands of QEMU's human monitor. A command that begins with a brace is a command of QMP."""
    foreign: str


_DISPLAY: Final = (
    '{"execute": "display-update", "arguments":'
    ' {"type": "vnc", "addresses": [{"type": "inet", "host": "0.0.0.0", "port": "5977"}]}}'
)
EXTENSIONS: Final = {
    "its display listens": Extension((_DISPLAY,), "a TCP socket on port 5977"),
    "a debugger may connect": Extension(("gdbserver tcp:127.0.0.1:5978",), "a TCP socket on port 5978"),
    "it has another card": Extension(
        ("netdev_add user,id=other", "device_add virtio-net-pci,netdev=other,id=other-card,bus=pci.4"),
        "device other-card (virtio-net-pci)",
    ),
    "its frames are copied": Extension(
        (
            "chardev-add null,id=copies",
            "object_add filter-mirror,id=spy,netdev=hostnet0,queue=all,outdev=copies",
        ),
        "object spy (filter-mirror)",
    ),
}


class Host(Protocol):
    """Drivers of a host under test, and changes that a test makes to the host without these drivers."""

    hypervisor: Hypervisor
    disks: Disks
    root_disks: RootDisks
    images: Images
    bus: PciBus
    changed: threading.Event

    def kept_logs(self, days_later: int = 0) -> KeptLogs:
        """Return a new driver for the kept logs, with a clock that is this many days fast."""
        ...

    def log_output(self, slot: str, output: str) -> None:
        """Add output to the log of the serial port of the slot's machine."""
        ...

    def add_tap(self, name: str, *, many: bool = False) -> None: ...

    def delete_tap(self, name: str) -> None: ...

    def is_plugged(self, tap: str) -> bool:
        """Return whether a process holds the tap device open."""
        ...

    def place_image(self, content: bytes) -> None:
        """Make a disk image available to the node."""
        ...

    def lose_image(self, disk: RootDisk) -> None:
        """Make the image of a root disk unavailable."""
        ...

    def pause(self, domain: FoundDomain) -> None: ...

    def have_pci(self, tree: str, folder: Path) -> Path:
        """Replace the host's PCI functions by those of the named tree in `tests.node.pci_trees`. Return the folder that
        contains one folder for each PCI function.
        """
        ...

    def hold(self, machine: str, address: PciAddress) -> None:
        """Define a stopped virtual machine of another program, to which this PCI function is assigned."""
        ...

    def repin(self, domain: FoundDomain, cpu: int) -> None:
        """Pin the first virtual CPU of the machine to this CPU of the host, as an operator may do."""
        ...

    def stop(self, domain: FoundDomain) -> None:
        """End the virtual machine as an operator would, without notifying the agent."""
        ...

    def alter(self, domain: FoundDomain, alteration: Alteration) -> None: ...

    def freeze(self, domain: FoundDomain) -> None:
        """Stop the QEMU process of the virtual machine by SIGSTOP."""
        ...

    def extend(self, domain: FoundDomain, extension: Extension) -> None: ...

    def block(self, slot: str) -> None:
        """Replace the folder of the slot's disks by a file of the same name."""
        ...


def clock(days_later: int) -> Callable[[], float]:
    return lambda: time.time() + days_later * 24 * 3600


class Simulated:
    def __init__(self) -> None:
        self._host, self.changed = SimulatedHost(), threading.Event()
        self._links = SimulatedLinks(self._host)
        self._hypervisor = SimulatedHypervisor(self._host, self.changed.set, boot_seconds=0)
        self.hypervisor: Hypervisor = self._hypervisor
        self.disks: Disks = SimulatedDisks(self._host)
        self.root_disks: RootDisks = SimulatedRootDisks(self._host)
        self.images: Images = FixedImages((LAB_GUEST,))
        self.bus: PciBus = SimulatedPci(self._host)

    def kept_logs(self, days_later: int = 0) -> KeptLogs:
        return SimulatedKeptLogs(self._host, clock(days_later))

    def log_output(self, slot: str, output: str) -> None:
        name = f"{slot}/console.log"
        with self._host.change() as state:
            state.logs[name] = state.logs.get(name, "") + output

    def add_tap(self, name: str, *, many: bool = False) -> None:
        self._links.add_tap(Tap(name, many=many))

    def have_pci(self, tree: str, folder: Path) -> Path:
        with self._host.change() as state:
            state.pci = list(SysfsPci(lay_out(tree, folder)).devices())
        return folder / "devices"

    def hold(self, machine: str, address: PciAddress) -> None:
        with self._host.change() as state:
            state.domains.append(FoundDomain(machine, uuid4(), "stopped", None, devices=(address,)))

    def repin(self, domain: FoundDomain, cpu: int) -> None:
        self._hypervisor.pin(domain.uuid, (str(cpu),))

    def delete_tap(self, name: str) -> None:
        self._links.delete_link(name)

    def is_plugged(self, tap: str) -> bool:
        return self._links.is_in_use(tap)

    def place_image(self, content: bytes) -> None:
        with self._host.change() as state:
            state.absent_images = []

    def lose_image(self, disk: RootDisk) -> None:
        with self._host.change() as state:
            state.absent_images = [disk.digest]

    def pause(self, domain: FoundDomain) -> None:
        self._hypervisor.pause(domain.uuid)

    def stop(self, domain: FoundDomain) -> None:
        self._hypervisor.destroy(domain.uuid)

    def alter(self, domain: FoundDomain, alteration: Alteration) -> None:
        self._hypervisor.alter(domain.uuid, alteration.strange)

    def freeze(self, domain: FoundDomain) -> None:
        self._hypervisor.freeze(domain.uuid)

    def extend(self, domain: FoundDomain, extension: Extension) -> None:
        self._hypervisor.add_foreign_device(domain.uuid, extension.foreign)

    def block(self, slot: str) -> None:
        self.disks.wipe(slot)
        with self._host.change() as state:
            state.disks = sorted({*state.disks, slot})


class Real:
    """Real host of the machine tests: a lab node, reached through its root folder. `folder` is visible at the same path
    to this machine and to its lab nodes.

    The test process itself runs outside the node, and looks for QEMU processes among the processes of the node.
    """

    def __init__(self, node: LabNode, folder: Path) -> None:
        # Imported here and not above: libvirt's package is an extra, and the simulated host needs none of it.
        from node_agent.drivers.machines.libvirt import LibvirtHypervisor
        from node_agent.drivers.machines.qemu import QemuProcesses

        self._node, self.changed = node, threading.Event()
        self._added_taps: list[str] = []
        self._kept_logs = folder / "serial-logs"
        socket = f"/proc/{node.pid}/root/run/libvirt/libvirt-sock"
        self._root_disks_folder = folder / "root-disks"
        self._hypervisor = LibvirtHypervisor(
            f"qemu:///system?socket={socket}", self.changed.set, processes=QemuProcesses(node.pid)
        )
        self.hypervisor: Hypervisor = self._hypervisor
        self.disks: Disks = DisksFolder(folder / "disks")
        self.root_disks: RootDisks = RootDisksFolder(RootDiskSettings(folder=self._root_disks_folder))
        self.images: Images = ImagesFolder(folder / "images")
        self.bus: PciBus = SysfsPci(Path("/sys"))

    def kept_logs(self, days_later: int = 0) -> KeptLogs:
        return KeptLogsFolder(self._kept_logs, clock(days_later))

    def log_output(self, slot: str, output: str) -> None:
        with (self.disks.path(slot) / "console.log").open("a") as log:
            log.write(output)

    def add_tap(self, name: str, *, many: bool = False) -> None:
        self._node.run(
            ["ip", "tuntap", "add", "dev", name, "mode", "tap", *(["multi_queue"] if many else [])]
        )
        self._added_taps.append(name)
        self._node.run(["ip", "link", "set", name, "up"])

    def delete_tap(self, name: str) -> None:
        self._node.run(["ip", "link", "del", name])

    def is_plugged(self, tap: str) -> bool:
        found = self._node.run(["ip", "-json", "link", "show", tap], check=False).stdout
        return "LOWER_UP" in found

    def place_image(self, content: bytes) -> None:
        self._image(root_disk(content)).parent.mkdir(parents=True, exist_ok=True)
        self._image(root_disk(content)).write_bytes(content)

    def lose_image(self, disk: RootDisk) -> None:
        self._image(disk).unlink()

    def _image(self, disk: RootDisk) -> Path:
        return self._root_disks_folder / "cache" / disk.digest.removeprefix("sha256:")

    def pause(self, domain: FoundDomain) -> None:
        self.virsh("suspend", str(domain.uuid))

    def have_pci(self, tree: str, folder: Path) -> Path:
        self.bus = SysfsPci(lay_out(tree, folder))
        return folder / "devices"

    def hold(self, machine: str, address: PciAddress) -> None:
        place = Place((HostDevice(address, "gpu"),))
        guest = replace(guest_for(slice_on(9), place), name=machine, uuid=uuid4())
        foreign = re.sub("<metadata>.*</metadata>", "", domain_xml(guest, HOSTING))
        self._node.run([*VIRSH, "define", "/dev/stdin"], stdin=foreign)

    def repin(self, domain: FoundDomain, cpu: int) -> None:
        self.virsh("vcpupin", str(domain.uuid), "0", str(cpu), "--live")

    def stop(self, domain: FoundDomain) -> None:
        self.virsh("destroy", str(domain.uuid))

    def alter(self, domain: FoundDomain, alteration: Alteration) -> None:
        # The bytes of a kernel also serve as a disk, and as an unreadable initial file system.
        other_file = f"{domain.name}/other"
        self.disks.write(other_file, self.images.find(IMAGE).kernel.read_bytes())
        named = {
            "file": self.disks.path(other_file),
            "domain": domain.uuid,
            "mac": domain.interfaces[0],
        }
        if alteration.virsh:
            self.virsh(*alteration.virsh.format(**named).split())
            return
        xml = self._node.run([*VIRSH, "dumpxml", str(domain.uuid)]).stdout
        other, made = re.subn(alteration.written, alteration.other.format(**named), xml)
        assert made == 1, xml
        # The XML as the agent wrote it, except for the alteration: libvirt adds the removed elements again.
        fresh = re.sub("<(alias|address type='pci'|log) .*/>", "", other)
        self.virsh("destroy", str(domain.uuid))
        self._node.run([*VIRSH, "create", "/dev/stdin"], stdin=fresh)

    def freeze(self, domain: FoundDomain) -> None:
        self._node.run(["pkill", "-STOP", "-f", f"guest={domain.name},"])

    def extend(self, domain: FoundDomain, extension: Extension) -> None:
        for command in extension.commands:
            words = [command] if command.startswith("{") else ["--hmp", command]
            self.virsh("qemu-monitor-command", str(domain.uuid), *words)

    def block(self, slot: str) -> None:
        self.disks.wipe(slot)
        self.disks.path(slot).parent.mkdir(exist_ok=True)
        self.disks.path(slot).write_text("in the way")

    def clear(self) -> None:
        """End all virtual machines of the node, remove their files and the taps that this object added, and close the
        connection to libvirt.
        """
        for domain in self.hypervisor.domains():
            self.hypervisor.destroy(domain.uuid)
        for tap in self._added_taps:
            self._node.run(["ip", "link", "del", tap], check=False)
        for slot in ("slice0", "slice1"):
            self.disks.wipe(slot)
            self.root_disks.wipe(slot)
        shutil.rmtree(self._kept_logs, ignore_errors=True)
        self._hypervisor.close()

    def list_domains(self) -> StartedRead:
        return self._hypervisor.start_listing_domains()

    def virsh(self, *words: str, check: bool = True) -> None:
        self._node.run([*VIRSH, *words], check=check)


def machines_of(host: Host, places: Places = NO_PLACES, *, days_later: int = 0) -> Machines:
    """Return the object by which the agent manages the virtual machines of slots, with the drivers of this host. It has
    kept no state in memory yet, and the clock of its kept logs is `days_later` fast.
    """
    drivers = host.hypervisor, host.disks, host.root_disks, host.images
    return Machines(
        *drivers,
        "qemu",
        kept_logs=host.kept_logs(days_later),
        offload=False,
        is_plugged=host.is_plugged,
        bus=host.bus,
        places=places,
        fabric_manager=NoFabricManager(),
    )


@contextmanager
def real_host(node: LabNode, folder: Path) -> Iterator[Real]:
    host = Real(node, folder)
    try:
        yield host
    finally:
        host.clear()


def store_image(folder: Path, guest: GuestImage) -> None:
    """Store the lab's guest image below `folder` as the only image of a node."""
    home = folder / "images" / IMAGE
    home.mkdir(parents=True)
    kernel, initrd = (Path(shutil.copy(path, home)) for path in (guest.kernel, guest.initrd))
    publish(folder / "images", Image(IMAGE, kernel, initrd, guest.cmdline))
