"""The parts that the guest's image is made with."""

import subprocess
from pathlib import Path

import pytest

from node_agent.lab.initramfs import modules, newc
from node_agent.seed import seed_image


def test_an_archive_makes_the_folders_its_files_need() -> None:
    names = [
        line.split(b"\0")[0] for line in newc.archive([newc.file("etc/acpi/run", b"x")]).split(b"070701")[1:]
    ]
    assert [name[104:] for name in names] == [b"etc", b"etc/acpi", b"etc/acpi/run", b"TRAILER!!!"]


def test_an_archive_depends_on_its_entries_alone() -> None:
    entries = [
        newc.folder("a"),
        newc.file("b", b"text"),
        newc.link("c", "b"),
        newc.character_device("d", 5, 1),
    ]
    assert newc.archive(entries) == newc.archive(reversed(entries))


def test_records_of_an_archive_start_at_multiples_of_four() -> None:
    data = newc.archive([newc.file("a", b"12345"), newc.file("bc", b"1")])
    starts = [at for at in range(len(data)) if data.startswith(b"070701", at)]
    assert [start % 4 for start in starts] == [0, 0, 0]


def module(tree: Path, name: str, depends: str) -> None:
    path = tree / "kernel" / f"{name}.ko"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x7fELF\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0")


def test_modules_come_after_what_they_depend_on(tmp_path: Path) -> None:
    (tmp_path / "modules.builtin").write_text("kernel/drivers/bus.ko\n")
    module(tmp_path, "net", "virtio-ring,failover")
    module(tmp_path, "failover", "")
    module(tmp_path, "virtio_ring", "bus")
    order = modules.in_load_order(tmp_path, ("net",))
    assert [path.stem for path in order] == ["virtio_ring", "failover", "net"]


def test_a_module_that_is_nowhere_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "modules.builtin").write_text("")
    with pytest.raises(modules.ModuleMissing, match="virtio_net"):
        modules.in_load_order(tmp_path, ("virtio_net",))


def test_a_seed_is_an_iso_image_labelled_cidata() -> None:
    image = seed_image("web-1", ["ssh-ed25519 AAAA it's mine"], "alc-1")
    assert image[32769:32774] == b"CD001"
    assert image[32808:32840].decode().strip() == "CIDATA"


def test_a_seed_holds_every_key_as_yaml_that_keeps_it() -> None:
    image = seed_image("web-1", ["ssh-ed25519 AAAA it's: #1"], "alc-1").decode("latin-1")
    assert "  - 'ssh-ed25519 AAAA it''s: #1'\n" in image


def test_a_seed_refuses_what_would_break_out_of_its_line() -> None:
    with pytest.raises(ValueError, match="printable"):
        seed_image("web-1", ["ssh-ed25519 AAAA x\nruncmd: [reboot]"], "alc-1")


def test_the_scripts_of_the_guest_are_valid_shell() -> None:
    folder = Path(newc.__file__).parent / "files"
    for script in folder.iterdir():
        if script.read_text().startswith("#!/bin/sh"):
            subprocess.run(["sh", "-n", str(script)], check=True)
