"""Slices with a root disk on a real node: the disk image is downloaded and boots by BIOS and UEFI, the data survives a
restart, and a release leaves none of it on the node's disk. The usual run boots the lab's guest; the full run also
boots Debian, which accepts SSH certificates for the allocation.
"""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import pytest
from redis.asyncio import Redis

from control_plane.cli.own_keys import certificate_file, make_key_pair
from control_plane.identity.gateway_keys import public_gateway_key
from control_plane.identity.ssh_certificates import Certified, ssh_certificate
from events.values import AllocationId, SshPublicKey
from node_agent.lab.disk_images.debian import MINIMUM_DISK_GIB, ensure_debian
from node_agent.lab.disk_images.lab_guest import ensure_guest_disk
from node_agent.lab.guest import GuestImage
from node_agent.lab.lab import Lab
from node_agent.lab.login import LoginFailed, login
from node_agent.settings import RootDiskSettings, Settings
from tasks.orders import ApplySlice, Order
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import apply, network, remove, stop
from tests.agent.queue import await_enrolment, send
from tests.agent.real_node import RealNode, control_of, guest_images, real_node
from tests.servers.image_store import ImageStore, image_store
from tests.servers.lab import kept_folder

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]
MARKER: Final = "written-by-the-tenant"
USER_DATA: Final = "#!/bin/sh\necho ran > /root/user-data\n"
FOLDER: Final = "/mnt/root-disks"
"""Mount point on the node of the file system with the root disks."""


@dataclass(frozen=True)
class Case:
    system: Literal["lab-guest", "debian"]
    firmware: Literal["bios", "uefi"]

    def __str__(self) -> str:
        return f"{self.system}-{self.firmware}"

    @property
    def boot_seconds(self) -> int:
        return 120 if self.system == "lab-guest" else 900

    @property
    def marking(self) -> str:
        """Command that writes the marker to the root disk."""
        if self.system == "debian":
            return f"echo {MARKER} > /root/marker; sync"
        return f"echo {MARKER} | dd of=/dev/vda bs=1M seek=500 conv=notrunc; sync"

    @property
    def reading(self) -> str:
        """Command that prints the marker from the root disk."""
        if self.system == "debian":
            return "cat /root/marker"
        return "dd if=/dev/vda bs=1M skip=500 count=1 2>/dev/null | head -n 1"


LAB_GUEST: Final = [Case("lab-guest", "bios"), Case("lab-guest", "uefi")]
CASES: Final = [*LAB_GUEST, Case("debian", "bios"), Case("debian", "uefi")]


@pytest.fixture
async def control(lab: Lab, plane: FakeControlPlane) -> AsyncIterator[Redis]:
    async with control_of(lab, plane) as client:
        yield client


@dataclass(frozen=True)
class Site:
    """Lab, image store and keys for the tests of root disks. `device` is the file with the blocks of the ext4 file
    system that the node mounts for root disks.
    """

    lab: Lab
    store: ImageStore
    device: Path
    key: Path
    caller: Path
    """Private key of a caller that is not among the authorized keys of the order."""
    guest_image: GuestImage


@pytest.fixture
def site(lab: Lab, guest_image: GuestImage, tmp_path: Path) -> Iterator[Site]:
    device, key, caller, node = (
        tmp_path / "device",
        tmp_path / "key",
        tmp_path / "caller",
        lab.node("lab-a"),
    )
    subprocess.run(["mkfs.ext4", "-q", "-F", str(device), "12G"], check=True)
    for each in (key, caller):
        make_key_pair(each, each.name)
    node.run(["sh", "-ec", f"mkdir -p {FOLDER}; mount -o loop {device} {FOLDER}"])
    with image_store(tmp_path / "store", lab.gateway_address) as store:
        yield Site(lab, store, device, key, caller, guest_image)
    node.run(["umount", FOLDER])


@contextmanager
def node_with_store(lab: Lab, plane: FakeControlPlane, store: ImageStore) -> Iterator[RealNode]:
    root_disks = RootDiskSettings(folder=Path(FOLDER), store=store.url, store_ca_file=store.ca_file)

    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"root_disks": root_disks})

    with real_node(lab, plane, guest_images(), change) as node:
        yield node


def ordered(position: int, case: Case, site: Site) -> Order:
    """Return an order for a slice with a root disk; its image is in the store."""
    of_debian = case.system == "debian"
    image = (
        ensure_debian(kept_folder() / "debian", print).path
        if of_debian
        else ensure_guest_disk(kept_folder() / "guest-disks", site.guest_image)
    )
    content = image.read_bytes()
    disk = site.store.add(
        content, format_="qcow2" if of_debian else "raw", size_gib=MINIMUM_DISK_GIB if of_debian else 1
    ).model_copy(update={"firmware": case.firmware})
    plain = apply(
        position,
        memory=512 if of_debian else 256,
        deadline=case.boot_seconds,
        image="disk",
        key=site.key.with_suffix(".pub").read_text().strip(),
    )
    assert isinstance(plain.body, ApplySlice)
    authority = f'cert-authority,principals="{plain.allocation_id}" {public_gateway_key(plain.allocation_id)}'
    machine = plain.body.machine.model_copy(
        update={
            "root_disk": disk,
            "user_data": USER_DATA if of_debian else None,
            "ssh_authorized_keys": (*plain.body.machine.ssh_authorized_keys, SshPublicKey(authority)),
        }
    )
    return plain.model_copy(update={"body": plain.body.model_copy(update={"machine": machine})})


def certify(site: Site, allocation: AllocationId) -> None:
    """Store an SSH certificate of the caller for an allocation where ssh(1) finds it."""
    now, public = datetime.now(UTC), site.caller.with_suffix(".pub").read_text().strip()
    valid = (now - timedelta(minutes=1), now + timedelta(minutes=15))
    line = ssh_certificate(Certified(allocation, SshPublicKey(public), "key:test", 1, *valid))
    certificate_file(site.caller).write_text(f"{line}\n")


@matrix.cases("ALC-5", CASES, few=1, among=LAB_GUEST)
async def test_slice_boots_from_its_root_disk_keeps_its_data_over_a_restart_and_leaves_none_after_its_release(
    site: Site, plane: FakeControlPlane, control: Redis, case: Case
) -> None:
    store, device = site.store, site.device
    with node_with_store(site.lab, plane, store) as node:

        async def guest(command: str, expected: str | None = None, key: Path = site.key) -> str:
            """Return what a command in the guest prints, after it prints `expected` if this is given. A login can fail
            for some time: cloud-init restarts the SSH server, and the guest may still start other services.
            """
            printed: list[str] = []

            def is_printed() -> bool:
                with suppress(LoginFailed):
                    done = login(node.lab, network().private_ip, key, [command], seconds=60)
                    printed[:] = [done.stdout.strip()]
                return bool(printed) and expected in (None, printed[0])

            await eventually_async(is_printed, case.boot_seconds, node.log)
            return printed[0]

        async def is_ready(times: int) -> None:
            await eventually_async(
                lambda: plane.kinds().count("slice.ready") == times or "slice.failed" in plane.kinds(),
                case.boot_seconds + 30,
                node.log,
            )
            assert plane.kinds().count("slice.ready") == times, node.log()

        node.start()
        await await_enrolment(plane)
        first = ordered(7, case, site)
        await send(control, first)
        await is_ready(1)
        assert isinstance(first.body, ApplySlice)
        disk = first.body.machine.root_disk
        assert disk is not None
        if case.system == "debian":
            # cloud-init runs user-data after the SSH server has started.
            await guest("cat /root/user-data 2>/dev/null", "ran")
        assert int(await guest("cat /sys/block/vda/size")) * 512 == disk.size_gib * 2**30
        if case.system == "debian":
            assert int(await guest("df --output=size -B1 / | tail -1")) > disk.size_gib * 2**30 * 0.9
        with pytest.raises(LoginFailed):
            login(node.lab, network().private_ip, site.caller, ["true"], seconds=60)
        certify(site, first.allocation_id)
        if case.system == "debian":
            assert await guest("id -u", key=site.caller) == "0"
            certify(site, AllocationId("alc-00000000000000000000000000"))
        # The SSH server of the lab's guest, dropbear, ignores certificates.
        with pytest.raises(LoginFailed):
            login(node.lab, network().private_ip, site.caller, ["true"], seconds=60)
        await guest(case.marking)
        assert await guest(case.reading) == MARKER

        await send(control, stop(8, grace=60))
        await eventually_async(lambda: "slice.stopped" in plane.kinds(), 120, node.log)
        assert is_on(device)
        await send(control, ordered(9, case, site))
        await is_ready(2)
        assert await guest(case.reading) == MARKER
        assert len(store.served) == 1

        await send(control, remove(10))
        await eventually_async(lambda: "slice.removed" in plane.kinds(), 120, node.log)
        assert not is_on(device)
        assert node.do(f"find {FOLDER}/slots") == f"{FOLDER}/slots\n"


def is_on(device: Path) -> bool:
    """Return whether the marker text that the guest wrote is anywhere in the blocks of the file system with the root
    disks.
    """
    os.sync()
    position, before = 0, b""
    with device.open("rb") as blocks:
        while True:
            try:
                position = os.lseek(blocks.fileno(), position, os.SEEK_DATA)
            except OSError:
                return False
            piece = os.pread(blocks.fileno(), 2**20, position)
            if MARKER.encode() in before + piece:
                return True
            position, before = position + len(piece), piece[-len(MARKER) :]
