"""Trees of sysfs and procfs for tests, built from a description of a host's PCI functions.

Each builder states the source of its facts. No such machine was available, so no tree is a full recording: the builders
combine published listings of machines of this type with the formats that the kernel documents. `tests.node.pci_trees`
has smaller trees, which do not show where a function is attached.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from events.values import PciAddress

_MEMORY_64: Final = 0x0014_220C
"""Flags of a prefetchable 64-bit BAR in `resource`, as in recordings of Linux 6."""
_MEMORY_32: Final = 0x0004_0200
_NO_REGION: Final = f"0x{0:016x} 0x{0:016x} 0x{0:016x}\n"
_GIB: Final = 1024**3
_MIB: Final = 1024**2


@dataclass(frozen=True)
class Function:
    """A PCI function: its address, the path of bridges above it from the root bus, and its files."""

    address: str
    number: str
    """Vendor and device id, such as `10de:2335`."""
    class_: str
    root: str = "pci0000:00"
    bridges: tuple[str, ...] = ()
    numa_node: int = -1
    iommu_group: int | None = None
    driver: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    """Content of further files by path below the function's folder; `-> target` is a link."""


@dataclass(frozen=True)
class RdmaDevice:
    """RDMA device of a function, with one port."""

    name: str
    guid: str
    link_layer: str
    rate: str
    state: str = "4: ACTIVE"
    physical_state: str = "5: LinkUp"

    def files(self) -> dict[str, str]:
        device, port = f"infiniband/{self.name}", f"infiniband/{self.name}/ports/1"
        return {
            f"{device}/node_type": "1: CA",
            f"{device}/node_guid": self.guid,
            f"{port}/link_layer": self.link_layer,
            f"{port}/rate": self.rate,
            f"{port}/state": self.state,
            f"{port}/phys_state": self.physical_state,
        }


@dataclass(frozen=True)
class Link:
    """Network link of a PCI function. If it is a port of the embedded switch of its card, it has the id of the switch
    and its own port name."""

    name: str
    number: int
    address: str
    mtu: int
    speed: int | None
    """Speed of the link in Mbit/s; None for a link without a carrier, because its speed cannot be read."""
    switch_id: str = ""
    port: str = ""

    def files(self) -> dict[str, str]:
        state = "down" if self.speed is None else "up"
        files = {
            "ifindex": str(self.number),
            "address": self.address,
            "mtu": str(self.mtu),
            "operstate": state,
        }
        files |= {"speed": str(self.speed)} if self.speed is not None else {}
        files |= {"phys_switch_id": self.switch_id, "phys_port_name": self.port} if self.switch_id else {}
        return {f"net/{self.name}/{file}": content for file, content in files.items()}


@dataclass(frozen=True)
class Tree:
    """Folders with the sysfs (`sys`) and procfs (`proc`) files of a host."""

    root: Path

    @property
    def sysfs(self) -> Path:
        return self.root / "sys"

    @property
    def procfs(self) -> Path:
        return self.root / "proc"

    def folder(self, address: str) -> Path:
        """Return the real folder of a PCI function."""
        return (self.sysfs / "bus" / "pci" / "devices" / address).resolve()

    def write(self, address: str, name: str, content: str) -> None:
        """Replace a file in the folder of a PCI function."""
        _put(self.folder(address) / name, content)

    def remove(self, address: str, *names: str) -> None:
        """Remove files and folders from the sysfs folder of a PCI function."""
        for name in names:
            _delete(self.folder(address) / name)

    def vanish(self, address: str) -> None:
        """Remove a PCI function from the tree, like a card that the bus has lost."""
        folder = self.folder(address)
        (self.sysfs / "bus" / "pci" / "devices" / address).unlink()
        _delete(folder)

    def load_nvidia_driver(self, address: str, model: str, uuid: str) -> None:
        """Write the file that the NVIDIA driver shows for a GPU.

        Source: an H100's file at topofmind.dev/notes/sysadmin/gpu, driver 535.
        """
        self.write(address, "driver", "-> ../../../bus/pci/drivers/nvidia")
        _put(
            self.procfs / "driver" / "nvidia" / "gpus" / address / "information",
            f"Model: \t\t {model}\nIRQ:   \t\t 10\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.99.00.01\n"
            f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {address}\n"
            "Device Minor: \t 5\nGPU Firmware: \t 535.129.03\nGPU Excluded:\t No",
        )


def build_tree(root: Path, functions: Iterable[Function]) -> Tree:
    """Write the functions below `root` as sysfs shows them: folders nested by bridge, and links from `bus`."""
    tree = Tree(root)
    listed = tree.sysfs / "bus" / "pci" / "devices"
    listed.mkdir(parents=True)
    for each in functions:
        path = Path("devices", each.root, *each.bridges, each.address)
        folder = tree.sysfs / path
        folder.mkdir(parents=True, exist_ok=True)
        (listed / each.address).symlink_to(Path("../../..", path))
        vendor, device = each.number.split(":")
        up = "../" * (len(path.parts) - 1)
        files = {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "class": f"0x{each.class_}",
            "numa_node": str(each.numa_node),
            **(
                {}
                if each.iommu_group is None
                else {"iommu_group": f"-> {up}kernel/iommu_groups/{each.iommu_group}"}
            ),
            **({} if each.driver is None else {"driver": f"-> {up}bus/pci/drivers/{each.driver}"}),
            **each.files,
        }
        for name, content in files.items():
            _put(folder / name, content)
    return tree


def hgx_h200(root: Path, link_layer: str = "InfiniBand") -> Tree:
    """Write an eight-GPU H200 host with ConnectX-7 cards, one behind the PCIe switch of each GPU.

    Sources:
    - ids, classes, bus numbers and IOMMU groups of the GPUs and NVSwitches: the `lspci` output of an H200 host in issue
      259 of github.com/bigstack-oss/cubecos (the four NVSwitches share group 114);
    - a Texas Instruments PCIe switch (104c:8232) above each GPU, four of them on each NUMA node: the topology that NCCL
      dumped on an HGX H200, in openfabric-systems/simllm (tests/fixtures/nccl_topology/vastai_hgx_h200_8x);
    - one card on the switch of each GPU: the PIX entries of `nvidia-smi topo -m` on such hosts (NVIDIA/nccl issue 933);
    - `rate` and `phys_state` of a 400 Gb/s port: "400 Gb/sec (4X NDR)", "5: LinkUp" in published outputs; an Ethernet
      port at the same rate has the same text, with another `link_layer` (NVIDIA/nccl issue 1866 shows EDR);
    - a second region of 256 GiB: the `lspci -vvv` of an HGX B200 (H100 with 80 GB has 128 GiB in fastfetch issue 1658).
    Bus numbers of root ports, switches and cards are invented.
    """
    gpus = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")
    groups = (59, 50, 41, 15, 107, 98, 89, 79)
    functions: list[Function] = []
    for number, (bus, group) in enumerate(zip(gpus, groups, strict=True)):
        first = int(bus, 16)
        host, upstream, card = f"{first - 3:02x}", f"{first - 2:02x}", f"{first + 1:02x}"
        node = number // 4
        port = Function(
            f"0000:{host}:01.0", "8086:352a", "060400", f"pci0000:{host}", (), node, 200 + number, "pcieport"
        )
        above = (port.address, f"0000:{upstream}:00.0")
        common = Function("", "", "", port.root, above, node)
        to_gpu, to_card = f"0000:{first - 1:02x}:00.0", f"0000:{first - 1:02x}:01.0"
        functions += [
            port,
            replace(
                common,
                address=above[1],
                number="104c:8232",
                class_="060400",
                bridges=above[:1],
                driver="pcieport",
            ),
            replace(common, address=to_gpu, number="104c:8232", class_="060400", driver="pcieport"),
            replace(common, address=to_card, number="104c:8232", class_="060400", driver="pcieport"),
            replace(
                common,
                address=f"0000:{bus}:00.0",
                number="10de:2335",
                class_="030200",
                bridges=(*above, to_gpu),
                iommu_group=group,
                driver="vfio-pci",
                files={"resource": gpu_regions(256 * _GIB), "reset_method": "flr bus", "reset": ""},
            ),
            _connectx7(
                replace(common, bridges=(*above, to_card), iommu_group=300 + number), card, number, link_layer
            ),
        ]
    switches = (
        Function(
            f"0000:{bus}:00.0",
            "10de:22a3",
            "068000",
            "pci0000:00",
            ("0000:00:1b.0",),
            0,
            114,
            "nvidia-nvswitch",
        )
        for bus in ("05", "06", "07", "08")
    )
    above_switches = Function("0000:00:1b.0", "8086:1bbf", "060400", "pci0000:00", (), 0, 12, "pcieport")
    return build_tree(root, (*functions, above_switches, *switches))


def hgx_h200_roce(root: Path) -> Tree:
    """Write the files of the same host as `hgx_h200`, except that its network cards are configured for Ethernet
    (`LINK_TYPE_P1=ETH` in the firmware).

    Sources: as for `hgx_h200`. The class of the card changes with its link type: `lspci` lists a ConnectX-7 as
    "Infiniband controller" or as "Ethernet controller".
    """
    return hgx_h200(root, "Ethernet")


CARD_VFS: Final = ("0000:3b:00.3", "0000:3b:00.4", "0000:3b:00.5", "0000:3b:00.6")
"""PCI addresses of the virtual functions of the BlueField-3 card that `bluefield3` writes."""


def bluefield3(root: Path) -> Tree:
    """Write a host with a BlueField-3 in switchdev mode, with four virtual functions and the management link.

    Sources:
    - functions 0 and 1 (ConnectX-7, a2dc) and 2 (DMA controller "SoC Management Interface"): published `lspci` outputs
      of BlueField-3 hosts, such as e2:00.0 to e2:00.2 in the set-up guides of github.com/NVIDIA projects;
    - `tmfifo_net0`: a virtual link that the rshim driver creates (NVIDIA BlueField DPU OS, "Host-side Interface
      Configuration"); a program in user space creates it, so it is below /sys/devices/virtual;
    - port names `p0` and `pf0vf0`, the switch id and VF representors below the folder of the physical function: the
      kernel's networking/switchdev and mlx5's documentation of representors;
    - RDMA ports of representors as further ports of the RDMA device: mlx5 in switchdev mode (`rdma link` of rdma-core).
    The id c2d5 of the management function is from the PCI ID database. Addresses and IOMMU groups are invented.
    """
    port = Function("0000:3a:00.0", "8086:347a", "060400", "pci0000:3a", (), 0, 24, "pcieport")
    switch_id = "a8e3a30003c2fcb8"
    own = {
        "sriov_totalvfs": "16",
        "sriov_numvfs": "4",
        **{f"virtfn{number}": f"-> ../{vf}" for number, vf in enumerate(CARD_VFS)},
        **RdmaDevice("mlx5_0", "a288:c203:0074:3b00", "Ethernet", "200 Gb/sec (4X HDR)").files(),
        **{f"infiniband/mlx5_0/ports/{number}/link_layer": "Ethernet" for number in (2, 3, 4, 5)},
        **Link("enp59s0f0np0", 102, "a0:88:c2:74:3b:00", 9000, 200000, switch_id, "p0").files(),
    }
    for number in range(len(CARD_VFS)):
        mac = f"02:00:00:00:00:0{number}"
        own |= Link(f"eth{number}", 103 + number, mac, 1500, None, switch_id, f"pf0vf{number}").files()
    card = Function(
        "0000:3b:00.0", "15b3:a2dc", "020000", port.root, (port.address,), 0, 26, "mlx5_core", own
    )
    second = RdmaDevice(
        "mlx5_1", "a288:c203:0074:3b01", "Ethernet", "40 Gb/sec (4X QDR)", "1: DOWN", "3: Disabled"
    ).files()
    management = replace(
        card,
        address="0000:3b:00.2",
        number="15b3:c2d5",
        class_="080100",
        iommu_group=28,
        driver=None,
        files={},
    )
    vfs = (
        replace(
            card,
            address=vf,
            number="15b3:101e",
            iommu_group=40 + number,
            driver="vfio-pci",
            files={"physfn": f"-> ../{card.address}", "reset_method": "flr", "reset": ""},
        )
        for number, vf in enumerate(CARD_VFS)
    )
    tree = build_tree(
        root,
        (port, card, replace(card, address="0000:3b:00.1", iommu_group=27, files=second), management, *vfs),
    )
    for name, content in Link("tmfifo_net0", 7, "00:1a:ca:ff:ff:02", 1500, 10).files().items():
        _put(tree.sysfs / "devices" / "virtual" / name, content)
    return tree


def ethernet_only(root: Path) -> Tree:
    """Write a host with one GPU, and an Intel E810 card without an RDMA driver (`irdma` not loaded), one VF of it.

    Sources: ids and classes from the PCI ID database (8086:1592 E810-C, 8086:1889 its virtual function, 10de:26b9
    L40S); `speed` and `operstate` from ABI/testing/sysfs-class-net. That the second region of an L40S with 48 GB has
    64 GiB follows from the next power of two; no published listing was found.
    """
    port = Function("0000:40:01.1", "1022:14ab", "060400", "pci0000:40", (), 0, 8, "pcieport")
    gpu_port = replace(port, address="0000:60:01.1", root="pci0000:60", iommu_group=9)
    card = Function(
        "0000:41:00.0",
        "8086:1592",
        "020000",
        port.root,
        (port.address,),
        0,
        30,
        "ice",
        {
            **Link("ens1f0", 4, "b4:96:91:aa:bb:cc", 1500, 100000).files(),
            "sriov_totalvfs": "64",
            "virtfn0": "-> ../0000:41:01.0",
        },
    )
    vf = replace(
        card,
        address="0000:41:01.0",
        number="8086:1889",
        iommu_group=31,
        driver="vfio-pci",
        files={"physfn": f"-> ../{card.address}"},
    )
    gpu = Function(
        "0000:61:00.0",
        "10de:26b9",
        "030200",
        gpu_port.root,
        (gpu_port.address,),
        0,
        32,
        "vfio-pci",
        {"resource": gpu_regions(64 * _GIB)},
    )
    return build_tree(root, (port, gpu_port, card, vf, gpu))


def gpu_regions(memory: int) -> str:
    """Return the content of the sysfs file `resource` of a GPU with three BARs: 16 MiB of registers, a window of
    `memory` bytes to the GPU's memory, and 32 MiB.
    """
    return "".join(
        (
            _region(0x2200_0000_0000, 16 * _MIB),
            _NO_REGION,
            _region(0x2000_0000_0000, memory),
            _NO_REGION,
            _region(0x2300_0000_0000, 32 * _MIB),
            _NO_REGION,
            # The ROM and the regions of virtual functions, which are larger and no BARs of the function itself.
            _region(0xF000_0000, 512 * 1024, _MEMORY_32),
            _region(0x3000_0000_0000, 1024 * _GIB),
        )
    )


def _region(start: int, size: int, flags: int = _MEMORY_64) -> str:
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}\n"


def _connectx7(common: Function, bus: str, number: int, link_layer: str) -> Function:
    is_infiniband = link_layer == "InfiniBand"
    name, mac = f"mlx5_{number}", f"b8:3f:d2:a1:b2:{number:02x}"
    # An IP-over-InfiniBand link has a hardware address of 20 bytes.
    address = (
        "00:00:10:29:fe:80:00:00:00:00:00:00:" + f"b8:3f:d2:03:00:a1:b2:{number:02x}"
        if is_infiniband
        else mac
    )
    link = f"ibp{int(bus, 16)}s0" if is_infiniband else f"enp{int(bus, 16)}s0np0"
    return replace(
        common,
        address=f"0000:{bus}:00.0",
        number="15b3:1021",
        class_="020700" if is_infiniband else "020000",
        driver="mlx5_core",
        files={
            "reset_method": "flr bus",
            "reset": "",
            **RdmaDevice(name, f"b83f:d203:00a1:b2{number:02x}", link_layer, "400 Gb/sec (4X NDR)").files(),
            **Link(link, 20 + number, address, 4092 if is_infiniband else 9000, 400000).files(),
        },
    )


def _put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if content.startswith("-> "):
        path.symlink_to(content.removeprefix("-> "))
    else:
        path.write_text(content if content.endswith("\n") or not content else f"{content}\n")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for inside in path.iterdir():
            _delete(inside)
        path.rmdir()
    else:
        path.unlink()


HGX_GPU: Final = PciAddress("0000:9a:00.0")
HGX_CARD: Final = PciAddress("0000:9b:00.0")
"""The fifth GPU of `hgx_h200`, on NUMA node 1, and the network card on the same PCIe switch."""
