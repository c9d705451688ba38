"""The kernel modules that a guest needs, in an order that loads each module after its dependencies.

The kernel package does not contain `modules.dep`, because depmod(8) creates that file during an installation. The
dependencies are therefore read from the `depends=` field inside each module, as depmod does.
"""

import re
from pathlib import Path
from typing import Final

WANTED: Final = ("virtio_pci", "virtio_rng", "virtio_net", "virtio_blk", "isofs", "button", "evdev")
"""Kernel modules of the lab's guest in load order. The modules of the bus and of the entropy source come first, because
the guest's SSH server needs entropy for its host keys.
"""
_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")


class ModuleMissing(Exception):
    """The kernel package neither contains a module nor lists it as built in."""

    def __init__(self, name: str, tree: Path) -> None:
        super().__init__(f"kernel module {name} is not in {tree}; check the kernel package")
        self.name = name


def in_load_order(tree: Path, wanted: tuple[str, ...] = WANTED) -> tuple[Path, ...]:
    """Return the files of the kernel modules `wanted` and of their dependencies, in load order.

    `tree` is the folder `lib/modules/<release>` of the kernel package. Raises `ModuleMissing`.
    """
    files = {_name(path): path for path in tree.rglob("*.ko")}
    built_in = {_name(Path(line)) for line in (tree / "modules.builtin").read_text().splitlines()}
    order: dict[str, Path] = {}

    def load(name: str) -> None:
        if name in order or name in built_in:
            return
        if name not in files:
            raise ModuleMissing(name, tree)
        for needed in _dependencies(files[name]):
            load(needed)
        order[name] = files[name]

    for name in wanted:
        load(name)
    return tuple(order.values())


def _dependencies(module: Path) -> list[str]:
    found = _DEPENDS.search(module.read_bytes())
    names = found[1].decode().split(",") if found else []
    return [_canonical(name) for name in names if name]


def _name(path: Path) -> str:
    return _canonical(path.name.removesuffix(".ko"))


def _canonical(name: str) -> str:
    # The kernel treats '-' and '_' in module names as equal (virtio-rng.ko is virtio_rng).
    return name.replace("-", "_")
