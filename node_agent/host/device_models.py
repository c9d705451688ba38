"""Names of PCI devices by vendor and device id, and the memory of GPU models.

A host without the vendor's driver reports no names. The names are those of the PCI ID database (pci-ids.ucw.cz, vendors
10de and 15b3), without the chip's code name. The memory of a GPU is the total that `nvidia-smi` shows for the model in
published outputs. The size of a BAR does not show it: H100 with 80 GB has a BAR of 128 GiB, B200 with 180 GB one of
256 GiB, and GeForce cards often one of 256 MiB.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Model of a PCI device. `memory_mib` is None if the device has no memory or its size is not known."""

    name: str
    memory_mib: int | None = None


DEVICE_MODELS: Final[Mapping[str, DeviceModel]] = {
    "10de:20b0": DeviceModel("NVIDIA A100 SXM4 40GB", 40960),
    "10de:20b2": DeviceModel("NVIDIA A100 SXM4 80GB", 81920),
    "10de:20b5": DeviceModel("NVIDIA A100 PCIe 80GB", 81920),
    "10de:20f1": DeviceModel("NVIDIA A100 PCIe 40GB", 40960),
    "10de:2329": DeviceModel("NVIDIA H20", 97871),
    "10de:2330": DeviceModel("NVIDIA H100 SXM5 80GB", 81559),
    "10de:2331": DeviceModel("NVIDIA H100 PCIe", 81559),
    "10de:2335": DeviceModel("NVIDIA H200 SXM 141GB", 143771),
    "10de:233b": DeviceModel("NVIDIA H200 NVL", 143771),
    "10de:2684": DeviceModel("NVIDIA GeForce RTX 4090", 24564),
    "10de:26b9": DeviceModel("NVIDIA L40S", 46068),
    "10de:2901": DeviceModel("NVIDIA B200", 183359),
    "10de:22a3": DeviceModel("NVIDIA H100 NVSwitch"),
    "15b3:1017": DeviceModel("Mellanox ConnectX-5"),
    "15b3:1019": DeviceModel("Mellanox ConnectX-5 Ex"),
    "15b3:101b": DeviceModel("Mellanox ConnectX-6"),
    "15b3:101d": DeviceModel("Mellanox ConnectX-6 Dx"),
    "15b3:101e": DeviceModel("Mellanox ConnectX Family mlx5Gen Virtual Function"),
    "15b3:101f": DeviceModel("Mellanox ConnectX-6 Lx"),
    "15b3:1021": DeviceModel("Mellanox ConnectX-7"),
    "15b3:1023": DeviceModel("Mellanox ConnectX-8"),
    "15b3:a2d6": DeviceModel("Mellanox BlueField-2 integrated ConnectX-6 Dx"),
    "15b3:a2dc": DeviceModel("Mellanox BlueField-3 integrated ConnectX-7"),
}
"""Models by `PciDevice.number`. An unknown device has no name and is used like a known one."""
