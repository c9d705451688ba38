"""The kernel of a nested lab host, and the initramfs that mounts its root file system.

The cloud kernel of the lab's guests has no VFIO, so this is Debian's general kernel. It is downloaded and unpacked, not
installed. The folder of the built files is named after a hash of their recipe.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_agent.lab.initramfs import modules, newc
from node_agent.lab.initramfs.packages import Apt, PackagesUnavailable

_KERNEL: Final = "linux-image-amd64"
_INIT: Final = Path(__file__).with_name("files") / "init"
_MODULES: Final = (
    # The root file system, the control pipe and the network card:
    *("virtio_pci", "virtio_console", "virtio_net", "virtio_rng", "9pnet_virtio", "9p", "overlay"),
    # What the agent configures for slices:
    *(
        "crc32c_generic",
        "tun",
        "dummy",
        "veth",
        "nf_tables",
        "nft_chain_nat",
        "nft_ct",
        "nft_nat",
        "nft_masq",
        "nft_reject_inet",
    ),
    *("nft_limit", "nft_log", "nft_fib_inet", "nft_redir", "nf_conntrack_netlink", "xfrm_user", "af_packet"),
    # PCI functions, their drivers on the host, and VFIO:
    *("e1000e", "nvme", "vfio_iommu_type1", "vfio_pci"),
)


@dataclass(frozen=True, slots=True)
class NestedKernel:
    """Kernel and initramfs that boot a nested lab host."""

    kernel: Path
    initrd: Path


def ensure_nested_kernel(folder: Path, progress: Callable[[str], None]) -> NestedKernel:
    """Return the kernel of nested lab hosts below `folder`; make it first if it is missing (about half a minute, mostly
    download).

    `progress` is called with a description before each long step. Raises `PackagesUnavailable`.
    """
    built = folder / _recipe_hash()
    if not built.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as name:
            _build(Path(name), built, progress)
    return NestedKernel(built / "vmlinuz", built / "initrd")


def _build(work: Path, built: Path, progress: Callable[[str], None]) -> None:
    root, image = work / "root", work / "image"
    progress("downloading the kernel of the nested host")
    apt = Apt(work / "apt")
    try:
        _unpack(apt, root)
    except PackagesUnavailable:
        apt.refresh()
        _unpack(apt, root)
    image.mkdir()
    shutil.copyfile(next((root / "boot").glob("vmlinuz-*")), image / "vmlinuz")
    (image / "initrd").write_bytes(newc.archive(_entries(root)))
    # A concurrent build may have finished first; its files are identical.
    if not built.exists():
        os.rename(image, built)


def _unpack(apt: Apt, root: Path) -> None:
    kernel = apt.direct_dependency(_KERNEL, "linux-image-")
    apt.unpack((kernel, "busybox-static"), root)


def _entries(root: Path) -> Iterator[newc.Entry]:
    yield from (newc.folder(path) for path in ("proc", "sys", "dev", "lower", "memory", "root"))
    yield newc.character_device("dev/console", 5, 1)
    yield newc.file("bin/busybox", (root / "bin" / "busybox").read_bytes(), 0o755)
    yield newc.file("init", _INIT.read_bytes(), 0o755)
    files = modules.in_load_order(next((root / "lib" / "modules").iterdir()), _MODULES)
    yield from (newc.file(f"modules/{path.name}", path.read_bytes()) for path in files)
    yield newc.file("modules/order", "".join(f"{path.name}\n" for path in files).encode())


def _recipe_hash() -> str:
    recipe = hashlib.sha256()
    for path in (Path(__file__), _INIT):
        recipe.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return recipe.hexdigest()[:16]
