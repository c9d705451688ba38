"""Configuration of the agent: one JSON file, read only here, and refused as a whole if any field is invalid."""

import ssl
from collections import Counter
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, model_validator

from events.values import SlotIndex
from node_agent.host.guests import Accelerator
from node_agent.host.host_resources import HostDevice, Place, Places
from tasks.fields import ImageName, InterfaceName, Ipv4Address, NodeId, PciAddress, Port, Wire
from tasks.trust import UnusableCa, trust

HostCpu = Annotated[int, Field(ge=0, le=8191)]
DeviceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
"""Name of a network link that the agent does not create; any name that Linux and its drivers use is valid."""


class SettingsRefused(Exception):
    """The configuration file cannot be used; the message names the invalid fields and the reasons."""


class SlotSettings(Wire):
    """Settings of one slot: its size, and the host resources that are assigned to its machine."""

    index: Annotated[SlotIndex, Field(ge=0, le=63)]
    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=32)
    gpus: tuple[PciAddress, ...] = Field(default=(), max_length=16)
    """PCI functions of GPUs, given to the slot's machine with all functions of their IOMMU groups."""
    fabric: tuple[PciAddress, ...] = Field(default=(), max_length=16)
    """PCI functions of the workload's own network, such as InfiniBand, given to the slot's machine with all functions
    of their IOMMU groups."""
    vf: PciAddress | None = None
    """Virtual function that is the machine's network card instead of a tap."""
    cpus: tuple[HostCpu, ...] = Field(default=(), max_length=256)
    """CPUs of the host to which the slot's virtual CPUs are pinned, one each; empty: any."""
    numa_node: int | None = Field(default=None, ge=0, le=1023)
    """NUMA node of the host that provides the slot's memory; None: any."""
    hugepage_kib: Literal[2048, 1048576] | None = None
    queues: int = Field(default=1, ge=1, le=256)
    """Number of queues of the machine's network card if the card is connected to a tap; at most one for each virtual
    CPU."""

    @model_validator(mode="after")
    def _fits_together(self) -> "SlotSettings":
        objections = []
        if self.cpus and len(self.cpus) != self.vcpus:
            objections.append(f"{len(self.cpus)} cpus for {self.vcpus} vcpus; list one CPU for each vcpu")
        if self.queues > self.vcpus:
            objections.append(f"{self.queues} queues for {self.vcpus} vcpus; configure at most one per vcpu")
        if self.queues > 1 and self.vf is not None:
            objections.append(
                f"{self.queues} queues require a tap; remove 'queues', since the driver of 'vf' sets their number"
            )
        for noun, values in (("CPU", self.cpus), ("PCI device", [each.address for each in self._devices])):
            twice = sorted(each for each, times in Counter[int | str](values).items() if times > 1)
            objections += [f"{noun} {each} is named twice; remove one" for each in twice]
        if objections:
            raise ValueError(f"slot {self.index} is invalid: {'; '.join(objections)}")
        return self

    @property
    def place(self) -> Place:
        """Host resources that the settings of this slot assign to its machine."""
        return Place(
            devices=self._devices,
            pins=tuple(map(str, self.cpus)),
            nodeset=None if self.numa_node is None else str(self.numa_node),
            hugepage_kib=self.hugepage_kib,
            queues=self.queues,
        )

    @property
    def _devices(self) -> tuple[HostDevice, ...]:
        cards = () if self.vf is None else (self.vf,)
        return (
            *(HostDevice(address, "gpu") for address in self.gpus),
            *(HostDevice(address, "fabric") for address in self.fabric),
            *(HostDevice(address, "card") for address in cards),
        )


class RootDiskSettings(Wire):
    """Settings of a node that creates root disks from disk images."""

    folder: Path
    """Folder for the cached disk images and the root disks. It must survive a reboot of the host, be on one file
    system that overwrites files in place, such as ext4, and be accessible to QEMU's user."""
    store: str | None = Field(default=None, pattern=r"^https://")
    """URL below which each disk image can be downloaded as `sha256/DIGEST`; None: only images that an operator placed
    in the cache are used."""
    store_ca_file: Path | None = None
    """CA bundle (PEM) that verifies the image store; None: the CAs of the system."""
    cache_gib: int = Field(default=200, ge=1)
    """Maximum total size of the cached disk images. Those that were not used for the longest time are deleted first;
    an image that a root disk uses is never deleted."""
    ovmf_folder: Path = Path("/usr/share/OVMF")
    """Folder with the UEFI firmware: `OVMF_CODE_4M.fd` and `OVMF_VARS_4M.fd`."""


class SimulatedImage(Wire):
    """An image of a simulated host, and the one TCP port on which its guests answer after boot."""

    name: ImageName
    port: Port = 22
    banner: str = "SSH-2.0-simulated"
    """The line that the guest sends to each client that connects; empty: none."""


class SimulatedPartition(Wire):
    """A partition of the simulated fabric manager: its number, and the GPUs that it connects."""

    number: int = Field(ge=0)
    gpus: tuple[PciAddress, ...] = Field(min_length=1, max_length=16)


class SimulatedHostSettings(Wire):
    """Settings of a simulated host, which exists in memory. With `host_file`, the simulated host survives a restart of
    its agent.
    """

    boot_seconds: float = Field(default=0.3, ge=0)
    host_file: Path | None = None
    images: tuple[SimulatedImage, ...] = ()
    """Images in addition to those of the lab, which every simulated host has."""
    gpu_partitions: tuple[SimulatedPartition, ...] = ()
    """Partitions that the host's fabric manager supports; empty: the host has no board of connected GPUs."""


class Settings(Wire):
    """Settings of an agent. `state_folder` must survive a reboot of the host; `run_folder` need not.

    `ca_file` is the CA bundle (PEM) used to verify an API behind https://; without it, the system's CAs are used. An
    agent needs no other CA in advance: the API provides the CA of the queue.
    """

    node_id: NodeId
    api_url: str = Field(pattern=r"^https?://")
    ca_file: Path | None = None
    enrolment_token_file: Path
    state_folder: Path
    run_folder: Path
    images_folder: Path
    bridge: InterfaceName = "br-slice"
    uplink: InterfaceName = "uplink0"
    resolvers: tuple[Ipv4Address, ...] = Field(default=(), max_length=3)
    """DNS servers that guests get by DHCP. They must be reachable through the uplink: the host itself does not serve
    DNS."""
    vf_parent: DeviceName | None = None
    """Link of the physical function that provides the slots' virtual functions."""
    bf3_link: DeviceName | None = None
    """Link to a BlueField card, usually `tmfifo_net0`."""
    datapath_type: Literal["system", "netdev"] = "system"
    libvirt_uri: str = "qemu:///system"
    sysfs_root: Path = Path("/sys")
    """Root of sysfs, in which the kernel shows the host's PCI devices."""
    procfs_root: Path = Path("/proc")
    """Root of procfs, in which the NVIDIA driver shows its GPUs."""
    ovs_folder: Path = Path("/run/openvswitch")
    accelerator: Accelerator = "qemu"
    root_disks: RootDiskSettings | None = None
    """Whether and how the node creates root disks; None: it runs only images of the format `kernel`."""
    slots: tuple[SlotSettings, ...] = Field(min_length=1, max_length=64)
    survey_seconds: float = Field(default=10, gt=0)
    """Seconds between two surveys. Drift that causes no event must be found within 15 s, survey included (P17)."""
    watch_changes: bool = True
    """Whether events of the host start a survey at once, in addition to one every `survey_seconds`."""
    heartbeat_seconds: float | None = Field(default=None, gt=0)
    """Seconds between two heartbeats; by default the interval that the control plane returns at each renewal."""
    renewal_seconds: float | None = Field(default=None, gt=0)
    """Seconds between two renewals of the session; by default about half of its lifetime."""
    head_seconds: float = Field(default=30.0, ge=0)
    """Minimum time between two checks of heads of the ledger, of which the node holds the newest."""
    log: Literal["console", "json"] = "json"
    simulated: SimulatedHostSettings | None = None

    @model_validator(mode="after")
    def _slots_differ(self) -> "Settings":
        if len({slot.index for slot in self.slots}) < len(self.slots):
            raise ValueError("two slots have the same index; give each slot an index of its own")
        shared = [
            f"slots {one} and {other} share {', '.join(common)}; assign each to one slot"
            for (one, its_place), (other, other_place) in combinations(self.places.items(), 2)
            if (common := _shared(its_place, other_place))
        ]
        if shared:
            raise ValueError("; ".join(shared))
        return self

    @model_validator(mode="after")
    def _ca_requires_https(self) -> "Settings":
        if self.ca_file is not None and not self.over_tls:
            raise ValueError(
                "ca_file is set, but api_url does not begin with https://; change api_url or remove ca_file"
            )
        return self

    @property
    def over_tls(self) -> bool:
        """Whether the agent accesses the API over TLS."""
        return self.api_url.startswith("https://")

    @property
    def places(self) -> Places:
        """Host resources of each slot's machine, by slot index."""
        return {slot.index: slot.place for slot in self.slots}


def _shared(one: Place, other: Place) -> tuple[str, ...]:
    devices = (f"PCI device {address}" for address in sorted(one.addresses & other.addresses))
    return (*devices, *(f"CPU {cpu}" for cpu in one.pins if cpu in other.pins))


_trusted: Final = lru_cache(maxsize=8)(trust)
"""Return the TLS context that trusts the given CA. The context is cached, so that all agents of a process that trust
the same CA share it."""


def api_trust(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context that verifies the API, or None for an API without https. Raises `SettingsRefused`."""
    if not settings.over_tls:
        return None
    path = settings.ca_file
    try:
        return _trusted(None if path is None else path.read_text())
    except (UnusableCa, UnicodeDecodeError) as error:
        raise SettingsRefused(f"cannot use the CA in ca_file {path}: {error}") from None
    except OSError as error:
        raise SettingsRefused(f"cannot read ca_file {path}: {error.strerror}") from error


def read_settings(path: Path) -> Settings:
    """Read and validate the agent's configuration file. Raises `SettingsRefused` with the invalid fields."""
    try:
        settings = Settings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsRefused(f"cannot read the settings file {path}: {error.strerror}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise SettingsRefused(f"the settings file {path} is invalid: {wrong}") from error
    api_trust(settings)
    return settings
