"""What the agent is told: one JSON file, read here and nowhere else, and refused whole if any of it is wrong."""

import ssl
from collections import Counter
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, model_validator

from events.values import SlotIndex
from node_agent.guests import Accelerator
from node_agent.places import HostDevice, Place, Places
from tasks.fields import ImageName, InterfaceName, Ipv4Address, NodeId, PciAddress, Port, Wire
from tasks.trust import UnusableCa, trust

HostCpu = Annotated[int, Field(ge=0, le=8191)]
DeviceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
"""Name of a link that others made, so any that Linux and its drivers give."""


class SettingsRefused(Exception):
    """The configuration file cannot be used; the message says which fields are wrong and why."""


class SlotSettings(Wire):
    """A place for one slice, and what it may use."""

    index: Annotated[SlotIndex, Field(ge=0, le=63)]
    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=32)
    gpus: tuple[PciAddress, ...] = Field(default=(), max_length=16)
    """Given to the slot's machine whole, with all functions that share their IOMMU groups."""
    fabric: tuple[PciAddress, ...] = Field(default=(), max_length=16)
    """The same, of the workload's own network."""
    vf: PciAddress | None = None
    """A virtual function that is the machine's network card, in place of one on a tap."""
    cpus: tuple[HostCpu, ...] = Field(default=(), max_length=256)
    """The host's processors that the slot's are, one each; empty: any."""
    numa_node: int | None = Field(default=None, ge=0, le=1023)
    """Whose memory the slot's is."""
    hugepage_kib: Literal[2048, 1048576] | None = None
    queues: int = Field(default=1, ge=1, le=256)
    """Of the machine's card on its tap; at most one for each processor."""

    @model_validator(mode="after")
    def _fits_together(self) -> "SlotSettings":
        objections = []
        if self.cpus and len(self.cpus) != self.vcpus:
            objections.append(f"{len(self.cpus)} cpus for {self.vcpus} vcpus")
        if self.queues > self.vcpus:
            objections.append(f"{self.queues} queues for {self.vcpus} vcpus")
        if self.queues > 1 and self.vf is not None:
            objections.append("queues are a tap's: how many a virtual function has is its driver's to say")
        for what, of in (("CPU", self.cpus), ("PCI device", [each.address for each in self._devices])):
            twice = sorted(each for each, times in Counter[int | str](of).items() if times > 1)
            objections += [f"{what} {each} is named twice" for each in twice]
        if objections:
            raise ValueError(f"slot {self.index}: {'; '.join(objections)}")
        return self

    @property
    def place(self) -> Place:
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


class SimulatedImage(Wire):
    """An image of a host in memory, and the one TCP port at which its guests answer once they have booted."""

    name: ImageName
    port: Port = 22
    says: str = "SSH-2.0-simulated"
    """The line that whoever connects is sent; empty: none."""


class SimulatedHostSettings(Wire):
    """A host that exists in memory; `host_file` lets it outlive its agent."""

    boot_seconds: float = Field(default=0.3, ge=0)
    host_file: Path | None = None
    images: tuple[SimulatedImage, ...] = ()
    """Beside the lab's, which every such host has."""


class Settings(Wire):
    """`state_folder` must survive a reboot of the host, `run_folder` need not.

    `ca_file` (PEM) is the CA that an API behind https:// is believed by; without it, one of the system's. It is all
    that an agent trusts beforehand: whom to believe at its queue it learns from the API.
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
    """The DNS servers that guests are told of; they must be reached by the uplink, as nothing on the host answers."""
    vf_parent: DeviceName | None = None
    """The physical function that slots have virtual functions of."""
    bf3_link: DeviceName | None = None
    """The link to a BlueField card, `tmfifo_net0` as a rule."""
    datapath_type: Literal["system", "netdev"] = "system"
    libvirt_uri: str = "qemu:///system"
    sysfs_root: Path = Path("/sys")
    """Where the host shows its PCI devices."""
    ovs_folder: Path = Path("/run/openvswitch")
    accelerator: Accelerator = "qemu"
    slots: tuple[SlotSettings, ...] = Field(min_length=1, max_length=64)
    survey_seconds: float = Field(default=10, gt=0)
    """Between two looks at everything: what nobody hears of is to be found within 15 s, the look included (P17)."""
    hears_changes: bool = True
    """Whether the host is looked at as soon as something may have changed, and not only every `survey_seconds`."""
    heartbeat_seconds: float | None = Field(default=None, gt=0)
    """As the control plane says at each renewal, unless told otherwise."""
    renewal_seconds: float | None = Field(default=None, gt=0)
    """How often the session is renewed; at half of its life unless told otherwise."""
    log: Literal["console", "json"] = "json"
    simulated: SimulatedHostSettings | None = None

    @model_validator(mode="after")
    def _slots_differ(self) -> "Settings":
        if len({slot.index for slot in self.slots}) < len(self.slots):
            raise ValueError("two slots have the same index")
        shared = [
            f"slots {one} and {other} share {', '.join(common)}"
            for (one, its), (other, others) in combinations(self.places.items(), 2)
            if (common := _shared(its, others))
        ]
        if shared:
            raise ValueError("; ".join(shared))
        return self

    @model_validator(mode="after")
    def _the_ca_is_asked(self) -> "Settings":
        if self.ca_file is not None and not self.over_tls:
            raise ValueError("ca_file: api_url is no https://, and nobody would be checked")
        return self

    @property
    def over_tls(self) -> bool:
        return self.api_url.startswith("https://")

    @property
    def places(self) -> Places:
        return {slot.index: slot.place for slot in self.slots}


def _shared(one: Place, other: Place) -> tuple[str, ...]:
    devices = (f"PCI device {address}" for address in sorted(one.addresses & other.addresses))
    return (*devices, *(f"CPU {cpu}" for cpu in one.pins if cpu in other.pins))


_trusted: Final = lru_cache(maxsize=8)(trust)
"""One context for all agents of a process that believe the same."""


def api_trust(settings: Settings) -> ssl.SSLContext | None:
    """Whom to believe as the API, which is asked over TLS only. Raises `SettingsRefused`."""
    if not settings.over_tls:
        return None
    path = settings.ca_file
    try:
        return _trusted(None if path is None else path.read_text())
    except (UnusableCa, UnicodeDecodeError) as error:
        raise SettingsRefused(f"ca_file: {path}: {error}") from None
    except OSError as error:
        raise SettingsRefused(f"ca_file: {path}: {error.strerror}") from error


def read_settings(path: Path) -> Settings:
    """Raises `SettingsRefused`."""
    try:
        settings = Settings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsRefused(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise SettingsRefused(f"{path}: {wrong}") from error
    api_trust(settings)
    return settings
