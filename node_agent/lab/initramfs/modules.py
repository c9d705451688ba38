"""Which kernel modules a guest needs, in an order in which each finds what it depends on already loaded.

The package holds no `modules.dep` (depmod(8) makes it at installation, and we do not install), so the
dependencies are read where depmod finds them: the `depends=` note inside each module.
"""

import re
from pathlib import Path
from typing import Final

WANTED: Final = ("virtio_pci", "virtio_rng", "virtio_net", "virtio_blk", "isofs", "button", "evdev")
"""Bus and entropy first: the host keys of the guest's SSH server wait for randomness."""
_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")


class ModuleMissing(Exception):
    """The kernel package neither holds a module nor says that it is built in."""

    def __init__(self, name: str, tree: Path) -> None:
        super().__init__(f"the kernel modules in {tree} hold no {name}")
        self.name = name


def in_load_order(tree: Path, wanted: tuple[str, ...] = WANTED) -> tuple[Path, ...]:
    """The module files of `wanted` and of all they depend on; `tree` is `lib/modules/<release>`."""
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
    # The kernel treats '-' and '_' in module names as one (virtio-rng.ko is virtio_rng).
    return name.replace("-", "_")
