"""Tests of the boot files of the lab's guest: the initramfs archive, the kernel modules and the seed image."""

import subprocess
from pathlib import Path

import pytest

from node_agent.aspects.seed import seed_image
from node_agent.lab.initramfs import modules, newc


def test_initramfs_archive_contains_the_parent_folders_of_its_files() -> None:
    names = [
        line.split(b"\0")[0] for line in newc.archive([newc.file("etc/acpi/run", b"x")]).split(b"070701")[1:]
    ]
    assert [name[104:] for name in names] == [b"etc", b"etc/acpi", b"etc/acpi/run", b"TRAILER!!!"]


def test_initramfs_archive_does_not_depend_on_the_order_of_its_entries() -> None:
    entries = [
        newc.folder("a"),
        newc.file("b", b"text"),
        newc.link("c", "b"),
        newc.character_device("d", 5, 1),
    ]
    assert newc.archive(entries) == newc.archive(reversed(entries))


def test_records_of_an_initramfs_archive_start_at_multiples_of_four_bytes() -> None:
    data = newc.archive([newc.file("a", b"12345"), newc.file("bc", b"1")])
    starts = [at for at in range(len(data)) if data.startswith(b"070701", at)]
    assert [start % 4 for start in starts] == [0, 0, 0]


def module(tree: Path, name: str, depends: str) -> None:
    path = tree / "kernel" / f"{name}.ko"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x7fELF\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0")


def test_kernel_modules_of_the_guest_are_loaded_after_their_dependencies(tmp_path: Path) -> None:
    (tmp_path / "modules.builtin").write_text("kernel/drivers/bus.ko\n")
    module(tmp_path, "net", "virtio-ring,failover")
    module(tmp_path, "failover", "")
    module(tmp_path, "virtio_ring", "bus")
    order = modules.in_load_order(tmp_path, ("net",))
    assert [path.stem for path in order] == ["virtio_ring", "failover", "net"]


def test_missing_kernel_module_of_the_guest_image_raises_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "modules.builtin").write_text("")
    with pytest.raises(modules.ModuleMissing, match="virtio_net"):
        modules.in_load_order(tmp_path, ("virtio_net",))


def test_seed_image_of_a_guest_is_an_iso_image_with_the_label_cidata() -> None:
    image = seed_image("web-1", ["ssh-ed25519 AAAA it's mine"], "alc-1")
    assert image[32769:32774] == b"CD001"
    assert image[32808:32840].decode().strip() == "CIDATA"


def test_seed_image_contains_every_ssh_key_as_quoted_yaml() -> None:
    image = seed_image("web-1", ["ssh-ed25519 AAAA it's: #1"], "alc-1").decode("latin-1")
    assert "  - 'ssh-ed25519 AAAA it''s: #1'\n" in image


def test_seed_image_with_an_ssh_key_that_contains_a_newline_is_refused() -> None:
    with pytest.raises(ValueError, match="printable"):
        seed_image("web-1", ["ssh-ed25519 AAAA x\nruncmd: [reboot]"], "alc-1")


def test_scripts_of_the_guest_image_are_valid_shell() -> None:
    folder = Path(newc.__file__).parent / "files"
    for script in folder.iterdir():
        if script.read_text().startswith("#!/bin/sh"):
            subprocess.run(["sh", "-n", str(script)], check=True)
