"""Tests of the boot files of the lab's guest: the initramfs archive, the kernel modules and the seed image."""

import email
import email.message
import subprocess
from io import BytesIO
from pathlib import Path
from typing import Final

import pycdlib
import pytest

from node_agent.aspects.seed import seed_image
from node_agent.lab.initramfs import modules, newc

PLAIN: Final = "ssh-ed25519 AAAA sliceplane-gateway"
"""A line of `authorized_keys` with a key and without options."""


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


def vendor_data(keys: list[str]) -> email.message.Message:
    """Return the vendor-data of a seed image with these keys."""
    iso = pycdlib.PyCdlib()
    iso.open_fp(BytesIO(seed_image("web-1", keys, "alc-1")))
    found = BytesIO()
    iso.get_file_from_iso_fp(found, joliet_path="/vendor-data")
    iso.close()
    return email.message_from_bytes(found.getvalue())


@pytest.mark.parametrize(
    "of_root", [PLAIN, f'no-pty,command="exit 1" {PLAIN}'], ids=["permitted", "forbidden"]
)
def test_script_in_vendor_data_restores_the_options_of_a_key_that_cloud_init_permits_for_root(
    of_root: str, tmp_path: Path
) -> None:
    authority = f'cert-authority,principals="alc-1" {PLAIN}'
    parts = vendor_data([PLAIN, authority]).get_payload()
    assert isinstance(parts, list)
    config, script = parts
    assert isinstance(config, email.message.Message)
    assert isinstance(script, email.message.Message)
    assert (config.get_content_type(), script.get_content_type()) == (
        "text/cloud-config",
        "text/x-shellscript",
    )
    assert "disable_root: false" in str(config.get_payload())
    keys = tmp_path / "authorized_keys"
    keys.write_text(f"{of_root}\n")
    text = str(script.get_payload()).replace("/root/.ssh/authorized_keys", str(keys))
    for _ in range(2):
        subprocess.run(["sh", "-c", text], check=True)
    expected = [of_root, authority] if of_root == PLAIN else [of_root]
    assert keys.read_text().splitlines() == expected


def test_vendor_data_is_a_plain_cloud_config_if_no_ssh_key_has_options() -> None:
    assert vendor_data([PLAIN]).get_payload() == "#cloud-config\ndisable_root: false\nssh_pwauth: false\n"


def test_scripts_of_the_guest_image_are_valid_shell() -> None:
    folder = Path(newc.__file__).parent / "files"
    for script in folder.iterdir():
        if script.read_text().startswith("#!/bin/sh"):
            subprocess.run(["sh", "-n", str(script)], check=True)
