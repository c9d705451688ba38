"""Facts about a slot's PCI function, computed from the text of files in sysfs and procfs. Nothing is read here.

Each file that a fact is taken from becomes a piece of evidence, so that a person can read the same file again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from events.values import PciAddress
from node_agent.host.device_models import DEVICE_MODELS, DeviceModel
from node_agent.host.device_texts import (
    largest_bar,
    nvidia_fields,
    rate_mbit,
    root_port,
    state_word,
    whole_number,
)
from node_agent.host.host_resources import Use
from node_agent.host.pci import PciDevice, PciDevices, is_representor
from tasks.devices import (
    LONGEST_NAME,
    MOST_EVIDENCE,
    FoundDevice,
    FoundEvidence,
    FoundFabric,
    LinkLayer,
)
from tasks.fields import LARGEST_COUNT, sentence

Files = Mapping[str, str]
"""Maps the absolute path of each file to its text, and of each symbolic link to its target. A missing or unreadable
file has no entry.
"""

PCI_FOLDER: Final = "/sys/bus/pci/devices"
NVIDIA_FOLDER: Final = "/proc/driver/nvidia/gpus"
_UNKNOWN_MODEL: Final = DeviceModel("")
_MAC: Final = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_LINK_LAYERS: Final[Mapping[str, LinkLayer]] = {"InfiniBand": "infiniband", "Ethernet": "ethernet"}
_LINK_LAYER_OF_CLASS: Final[Mapping[int, LinkLayer]] = {0x0207: "infiniband", 0x0200: "ethernet"}


@dataclass(frozen=True, slots=True)
class FactsUnread:
    """The files of a PCI function could not be read, with the reason."""

    reason: str


def absent_device(use: Use, address: PciAddress) -> FoundDevice:
    """Return the description of an address at which no PCI function was found."""
    return FoundDevice(address=address, use=use, number=None, kind=None, numa_node=None)


def describe_device(
    use: Use, address: PciAddress, devices: PciDevices, files: Files | FactsUnread
) -> FoundDevice:
    """Return what a host reports about a PCI function of a slot, which may be absent or unreadable."""
    absent = absent_device(use, address)
    device = devices.find(address)
    if device is None:
        return absent
    if device.unread is not None:
        return absent.model_copy(update={"unreadable": sentence(device.unread)})
    known = absent.model_copy(
        update={
            "number": device.number,
            "kind": device.kind,
            "numa_node": device.numa_node,
            "iommu_group": device.iommu_group,
        }
    )
    if isinstance(files, FactsUnread):
        return known.model_copy(update={"unreadable": sentence(files.reason)})
    return _described(known, device, devices, _Reading(files))


@dataclass(slots=True)
class _Reading:
    """Access to the files of PCI functions. It records the files that were used, as evidence for the facts."""

    files: Files
    used: dict[str, str] = field(default_factory=dict)

    def text(self, path: str) -> str | None:
        """Return the text of a file and record the file as evidence; return None if there is no such file."""
        text = self.files.get(path)
        if text is not None:
            self.used[path] = text
        return text

    def names(self, folder: str) -> list[str]:
        """Return the names of the entries of a folder, sorted."""
        prefix = f"{folder}/"
        inside = (path.removeprefix(prefix) for path in self.files if path.startswith(prefix))
        return sorted({path.partition("/")[0] for path in inside})

    def evidence(self) -> tuple[FoundEvidence, ...]:
        ordered = sorted(self.used.items())[:MOST_EVIDENCE]
        return tuple(FoundEvidence(path=sentence(path), value=sentence(text)) for path, text in ordered)


def _described(known: FoundDevice, device: PciDevice, devices: PciDevices, reading: _Reading) -> FoundDevice:
    folder = f"{PCI_FOLDER}/{device.address}"
    for name in ("vendor", "device", "class", "numa_node", "iommu_group"):
        reading.text(f"{folder}/{name}")
    model = DEVICE_MODELS.get(device.number, _UNKNOWN_MODEL)
    facts: dict[str, object] = {
        "model": model.name or None,
        "memory_mib": model.memory_mib,
        "root_port": root_port(reading.text(folder) or ""),
        **_virtual_function(device, devices, reading),
    }
    if known.use == "gpu":
        facts |= _gpu(device, reading)
    else:
        facts["fabric_metadata"] = _fabric(device, devices, reading)
    # Validated, unlike `model_copy`: names and numbers come from the files of drivers.
    return FoundDevice.model_validate({**dict(known), **_set(facts), "evidence": reading.evidence()})


def _set(facts: Mapping[str, object]) -> dict[str, object]:
    """Return the facts that are not None. Values that a report cannot contain are shortened or dropped, because a
    driver may return any text and number.
    """
    bounded = ((name, _bounded(value)) for name, value in facts.items())
    return {name: value for name, value in bounded if value is not None}


def _bounded(value: object) -> object:
    match value:
        case str():
            return sentence(value)[:LONGEST_NAME] or None
        case int():
            return value if value <= LARGEST_COUNT else None
        case _:
            return value


def _gpu(device: PciDevice, reading: _Reading) -> dict[str, object]:
    resources = f"{PCI_FOLDER}/{device.address}/resource"
    facts: dict[str, object] = {}
    if (largest := largest_bar(reading.files.get(resources, ""))) is not None:
        number, facts["bar_mib"] = largest
        # The addresses of the region change at a restart of the host, and are no fact about the device.
        reading.used[resources] = f"region {number}: 64-bit, prefetchable, {facts['bar_mib']} MiB"
    information = f"{NVIDIA_FOLDER}/{device.address}/information"
    fields = nvidia_fields(reading.files.get(information, ""))
    reported = {name: fields[name] for name in ("Model", "GPU UUID") if name in fields}
    if reported:
        reading.used[information] = "; ".join(f"{name}: {value}" for name, value in reported.items())
    return facts | _set({"model": reported.get("Model"), "uuid": reported.get("GPU UUID")})


def _virtual_function(device: PciDevice, devices: PciDevices, reading: _Reading) -> dict[str, object]:
    parent = device.physical_function
    if parent is None:
        return {}
    reading.text(f"{PCI_FOLDER}/{device.address}/physfn")
    facts: dict[str, object] = {"physical_function": parent}
    card = devices.find(parent)
    if card is None or device.address not in card.virtual_functions:
        return facts
    facts["vf_number"] = card.virtual_functions.index(device.address)
    reading.used[f"{PCI_FOLDER}/{parent}/virtfn{facts['vf_number']}"] = device.address
    representor = devices.representor_of(device)
    if representor is not None and representor.port is not None:
        facts["representor"] = representor.port
        # The agent renames a representor when a slice starts and when it is gone, so its name is not part of the path.
        reading.used[f"{PCI_FOLDER}/{parent}/net/*/phys_port_name"] = representor.port
    return facts


def _fabric(device: PciDevice, devices: PciDevices, reading: _Reading) -> FoundFabric | None:
    own = device.address
    functions = [own] if device.physical_function is None else [own, device.physical_function]
    port = next((each for each in functions if _rdma_port(each, reading) is not None), None)
    link = next((each for each in functions if _network_link(each, devices, reading) is not None), None)
    facts: dict[str, object] = {"link_layer": _LINK_LAYER_OF_CLASS.get(device.class_code >> 8)}
    if link is not None:
        facts |= _link_facts(link, devices, reading, is_own=link == own, has_port=port is not None)
    if port is not None:
        facts |= _set(_port_facts(port, reading, is_own=port == own))
    known = _set(facts)
    return FoundFabric.model_validate(known) if known else None


def _rdma_port(function: PciAddress, reading: _Reading) -> str | None:
    """Return the folder of the first port of a function's RDMA device; None if the function has no RDMA device.

    The first port is the function's own. In switchdev mode the others are those of representors.
    """
    folder = f"{PCI_FOLDER}/{function}/infiniband"
    for device in reading.names(folder):
        numbers = [int(name) for name in reading.names(f"{folder}/{device}/ports") if name.isdecimal()]
        if numbers:
            return f"{folder}/{device}/ports/{min(numbers)}"
    return None


def _port_facts(function: PciAddress, reading: _Reading, *, is_own: bool) -> dict[str, object]:
    port = _rdma_port(function, reading)
    assert port is not None, "only a function with a port has port facts"
    rdma = port.rpartition("/ports/")[0]
    facts: dict[str, object] = {
        "link_layer": _LINK_LAYERS.get(reading.text(f"{port}/link_layer") or ""),
        "port_state": state_word(reading.text(f"{port}/state")),
        "physical_state": state_word(reading.text(f"{port}/phys_state")),
        "rate_mbit": rate_mbit(reading.text(f"{port}/rate")),
    }
    if is_own:
        facts |= {"rdma_device": rdma.rpartition("/")[2], "guid": reading.text(f"{rdma}/node_guid")}
    return facts


def _network_link(function: PciAddress, devices: PciDevices, reading: _Reading) -> str | None:
    """Return the folder of a function's own network link, which is not a representor; None if it has no such link."""
    folder = f"{PCI_FOLDER}/{function}/net"
    device = devices.find(function)
    others = {each.name for each in device.netdevs if is_representor(each)} if device is not None else set()
    return next((f"{folder}/{name}" for name in reading.names(folder) if name not in others), None)


def _link_facts(
    function: PciAddress, devices: PciDevices, reading: _Reading, *, is_own: bool, has_port: bool
) -> dict[str, object]:
    link = _network_link(function, devices, reading)
    assert link is not None, "only a function with a link has link facts"
    facts: dict[str, object] = {"mtu": whole_number(reading.text(f"{link}/mtu"))}
    if is_own and _MAC.fullmatch(reading.files.get(f"{link}/address", "")):
        # An IP-over-InfiniBand link has a hardware address of 20 bytes, which is no MAC address.
        facts["mac"] = reading.text(f"{link}/address")
    if not has_port:
        facts["port_state"] = reading.text(f"{link}/operstate")
        facts["rate_mbit"] = whole_number(reading.text(f"{link}/speed"))
    return _set(facts)
