"""Tests that a guest on plain libvirt in a lab node boots, gets its address and accepts exactly the SSH keys of its
seed image.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.lab.guest import GuestImage
from node_agent.lab.lab import Lab, LabNode
from node_agent.lab.login import LoginFailed, login
from tests.lab import plain_slice
from tests.lab.awaiting import eventually

pytestmark = pytest.mark.node


def key_pair(folder: Path, comment: str) -> Path:
    key = folder / comment.replace(" ", "-").replace("'", "")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)], check=True)
    return key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guest")


@pytest.fixture(scope="module")
def key(folder: Path) -> Path:
    return key_pair(folder, "it's: someone's #1 key")


@pytest.fixture(scope="module")
def leases(lab: Lab, guest_image: GuestImage, folder: Path, key: Path) -> Iterator[Path]:
    """DHCP lease file of a network with the running guest `web-1`, which answers on port 22."""
    node = lab.node("lab-a")
    other = key_pair(folder, "second")
    keys = [path.with_suffix(".pub").read_text().strip() for path in (key, other)]
    with (
        plain_slice.network(node, folder) as leases,
        plain_slice.guest(node, guest_image, folder, "web-1", keys),
    ):
        eventually(lambda: banner(node), seconds=30)
        yield leases


def banner(node: LabNode) -> str:
    program = ["timeout", "0.5", "bash", "-c", f"read line < /dev/tcp/{plain_slice.ADDRESS}/22 && echo $line"]
    return node.run(program, check=False).stdout


def test_guest_sends_the_banner_of_its_ssh_server(leases: Path, node: LabNode) -> None:
    assert banner(node).startswith("SSH-2.0-")


def test_guest_gets_the_address_that_is_reserved_for_it(leases: Path) -> None:
    _, mac, address, hostname, _ = leases.read_text().split()
    assert (mac, address, hostname) == (plain_slice.MAC, plain_slice.ADDRESS, "web-1")


def test_ssh_login_with_a_key_of_the_guests_seed_image_runs_a_command(
    leases: Path, node: LabNode, key: Path
) -> None:
    done = login(node, plain_slice.ADDRESS, key, ["hostname; id -un; which awk; exit 3"])
    assert (done.stdout.split(), done.returncode) == (["web-1", "root", "/usr/bin/awk"], 3)


def test_authorized_keys_file_of_a_guest_contains_the_ssh_keys_of_its_seed_image_unchanged(
    leases: Path, node: LabNode, key: Path, folder: Path
) -> None:
    authorized = login(node, plain_slice.ADDRESS, key, ["cat", "/root/.ssh/authorized_keys"]).stdout
    assert authorized.splitlines() == [
        path.with_suffix(".pub").read_text().strip() for path in (key, folder / "second")
    ]


def test_ssh_login_with_a_key_that_is_not_in_the_guests_seed_image_is_refused(
    leases: Path, node: LabNode, folder: Path
) -> None:
    other_key = key_pair(folder, "other")
    with pytest.raises(LoginFailed) as failure:
        login(node, plain_slice.ADDRESS, other_key, ["true"])
    assert failure.value.refused


def test_ssh_login_at_an_address_that_does_not_answer_fails_and_does_not_count_as_refused(
    node: LabNode, leases: Path, key: Path
) -> None:
    with pytest.raises(LoginFailed) as failure:
        login(node, "10.99.0.1", key, ["true"])
    assert not failure.value.refused


def test_guest_reaches_the_labs_external_network_through_source_nat_of_its_node(
    leases: Path, lab: Lab, node: LabNode, key: Path
) -> None:
    rule = "table ip plain { chain out { type nat hook postrouting priority 100; oifname uplink0 masquerade; }; }"
    node.run(["nft", "-f", "-"], stdin=rule)
    try:
        answer = login(
            node, plain_slice.ADDRESS, key, ["wget", "-q", "-O-", f"http://{lab.upstream_address}/"]
        ).stdout
    finally:
        node.run(["nft", "delete", "table", "ip", "plain"])
    assert f'"source":"{node.uplink_address}"' in answer


def test_guest_powers_off_on_a_libvirt_shutdown(leases: Path, node: LabNode, folder: Path) -> None:
    node.run(["virsh", "--connect", plain_slice.URI, "shutdown", plain_slice.DOMAIN])
    eventually(
        lambda: plain_slice.DOMAIN not in node.run(["virsh", "--connect", plain_slice.URI, "list"]).stdout
    )
    # Other tests use the guest afterwards.
    plain_slice.start_guest(node, folder)
    eventually(lambda: banner(node), seconds=30)
