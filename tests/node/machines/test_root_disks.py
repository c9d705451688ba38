"""Root disks on a real host: the cache of disk images, the download from the image store, and the deletion."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from node_agent.drivers.machines.root_disks import RootDisksFolder
from node_agent.host.slices import HostRefused, HostUnreadable, ImageUnusable
from node_agent.settings import RootDiskSettings, SettingsRefused
from tests.servers.image_store import ImageStore, image_store, root_disk

CONTENT = os.urandom(3 * 2**20)
NAME = "slice0/root-x.qcow2"
MARKER = b"written by the tenant"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with image_store(tmp_path / "store") as running:
        yield running


def settings_of(folder: Path, store: ImageStore | None = None, cache_gib: int = 1) -> RootDiskSettings:
    return RootDiskSettings(
        folder=folder,
        store=None if store is None else store.url,
        store_ca_file=None if store is None else store.ca_file,
        cache_gib=cache_gib,
    )


@pytest.fixture
def disks(tmp_path: Path, store: ImageStore) -> RootDisksFolder:
    return RootDisksFolder(settings_of(tmp_path, store))


def cached(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / "cache").iterdir())


def digits(content: bytes) -> str:
    return sha256(content).hexdigest()


def qemu_img(*words: str) -> None:
    subprocess.run(["qemu-img", *words], check=True, stdout=subprocess.DEVNULL)


def test_image_is_downloaded_once_however_many_slots_need_it_at_the_same_time(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    disk = store.add(CONTENT)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: disks.fetch(disk), range(4)))
    assert store.served == [len(CONTENT)]
    assert (tmp_path / "cache" / digits(CONTENT)).read_bytes() == CONTENT


def test_interrupted_image_download_continues_at_the_byte_where_it_ended(
    disks: RootDisksFolder, store: ImageStore
) -> None:
    disk = store.add(CONTENT)
    store.cut_after = 2**20
    with pytest.raises(HostUnreadable, match=r"cannot download .*1048576 bytes read"):
        disks.fetch(disk)
    store.cut_after = None
    disks.fetch(disk)
    assert store.served == [2**20, len(CONTENT) - 2**20]


def test_image_download_from_a_store_without_range_requests_begins_again_after_an_interruption(
    disks: RootDisksFolder, store: ImageStore
) -> None:
    disk = store.add(CONTENT)
    store.supports_ranges, store.cut_after = False, 2**20
    with pytest.raises(HostUnreadable):
        disks.fetch(disk)
    store.cut_after = None
    disks.fetch(disk)
    assert store.served == [2**20, len(CONTENT)]


def test_long_image_download_pauses_and_is_continued_by_the_next_call(
    tmp_path: Path, store: ImageStore
) -> None:
    disks, disk = RootDisksFolder(settings_of(tmp_path, store), call_seconds=0), store.add(CONTENT)
    with pytest.raises(
        HostUnreadable, match=f"of {len(CONTENT)} bytes of image .* the next attempt continues"
    ):
        disks.fetch(disk)
    with pytest.raises(HostUnreadable):
        disks.fetch(disk)
    disks.fetch(disk)
    assert cached(tmp_path) == [digits(CONTENT)]


def test_image_with_another_digest_than_that_of_the_catalogue_is_refused_and_deleted(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    disk = store.add(CONTENT)
    store.images[digits(CONTENT)] = bytes(len(CONTENT))
    with pytest.raises(ImageUnusable, match=f"does not have the digest {disk.digest}"):
        disks.fetch(disk)
    assert cached(tmp_path) == []


def test_image_with_more_bytes_than_in_the_catalogue_is_refused(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    disk = store.add(CONTENT)
    store.images[digits(CONTENT)] = CONTENT + b"more"
    with pytest.raises(ImageUnusable, match=f"more than the {len(CONTENT)} bytes"):
        disks.fetch(disk)
    assert [each.stat().st_size for each in (tmp_path / "cache").iterdir()] == [0]


@pytest.mark.parametrize(
    ("status", "error"), [(404, ImageUnusable), (403, ImageUnusable), (503, HostUnreadable)]
)
def test_error_status_of_the_image_store_is_reported_and_only_a_temporary_error_is_retried(
    disks: RootDisksFolder, store: ImageStore, status: int, error: type[Exception]
) -> None:
    disk, store.status = store.add(CONTENT), status
    with pytest.raises(error, match=f"the image store answers {status}"):
        disks.fetch(disk)


def test_image_store_with_a_certificate_of_another_ca_is_not_trusted(
    tmp_path: Path, store: ImageStore
) -> None:
    with image_store(tmp_path / "other") as other:
        disk = other.add(CONTENT)
        disks = RootDisksFolder(settings_of(tmp_path, store).model_copy(update={"store": other.url}))
        with pytest.raises(HostUnreadable, match="certificate verify failed"):
            disks.fetch(disk)
        assert other.served == []


def test_root_disk_folder_that_cannot_be_created_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SettingsRefused, match=r"cannot create root_disks\.folder .*: Not a directory"):
        RootDisksFolder(settings_of(file / "root-disks"))


def test_node_without_image_store_uses_an_image_that_an_operator_placed_in_its_cache(tmp_path: Path) -> None:
    disks, disk = RootDisksFolder(settings_of(tmp_path)), root_disk(CONTENT)
    with pytest.raises(HostRefused, match="the settings name no image store"):
        disks.fetch(disk)
    (tmp_path / "cache" / digits(CONTENT)).write_bytes(CONTENT)
    disks.fetch(disk)
    disks.make(NAME, disk)


def test_image_that_an_operator_placed_with_a_wrong_digest_is_deleted_and_downloaded(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    disk = store.add(CONTENT)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / digits(CONTENT)).write_bytes(b"other")
    disks.fetch(disk)
    assert (tmp_path / "cache" / digits(CONTENT)).read_bytes() == CONTENT


def test_root_disk_has_the_ordered_size_and_the_content_of_its_image(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    disk = store.add(CONTENT, size_gib=3)
    disks.fetch(disk)
    disks.make(NAME, disk)
    qemu_img("convert", "-O", "raw", str(tmp_path / "slots" / NAME), str(tmp_path / "converted"))
    assert (tmp_path / "converted").stat().st_size == 3 * 2**30
    with (tmp_path / "converted").open("rb") as file:
        assert file.read(len(CONTENT)) == CONTENT
    assert disks.found("slice0") == ("slice0", f"slice0/base-{digits(CONTENT)}", NAME)


def test_image_that_is_larger_than_the_root_disk_is_refused(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    qemu_img("create", "-q", "-f", "qcow2", str(tmp_path / "big.qcow2"), "2G")
    disk = store.add((tmp_path / "big.qcow2").read_bytes(), format_="qcow2")
    disks.fetch(disk)
    with pytest.raises(ImageUnusable, match=f"needs a disk of {2 * 2**30} bytes; the root disk has 1 GiB"):
        disks.make(NAME, disk)
    assert NAME not in disks.found("slice0")


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        (("-b", "/etc/passwd", "-F", "raw", "-u"), "backing file"),
        (("-o", "data_file={folder}/secret.raw,data_file_raw=on"), "data file"),
    ],
)
def test_image_that_refers_to_a_file_of_the_host_is_refused(
    disks: RootDisksFolder,
    store: ImageStore,
    tmp_path: Path,
    options: tuple[str, ...],
    reference: str,
) -> None:
    filled = (each.format(folder=tmp_path) for each in options)
    qemu_img("create", "-q", "-f", "qcow2", *filled, str(tmp_path / "evil.qcow2"), "1M")
    disk = store.add((tmp_path / "evil.qcow2").read_bytes(), format_="qcow2")
    disks.fetch(disk)
    with pytest.raises(ImageUnusable, match=reference):
        disks.make(NAME, disk)


def placed(folder: Path, content: str, mebibytes: int, used_at: int) -> Path:
    """Place a sparse file in the cache as if it were an image with the digest of `content`."""
    path = folder / "cache" / digits(content.encode())
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.truncate(path, mebibytes * 2**20)
    os.utime(path, (used_at, used_at))
    return path


def test_full_cache_deletes_the_images_that_were_not_used_for_the_longest_time(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    old, used = placed(tmp_path, "old", 500, used_at=1), placed(tmp_path, "used", 500, used_at=0)
    newest, other = placed(tmp_path, "newest", 500, used_at=2), tmp_path / "cache" / "notes"
    other.write_text("of an operator")
    os.truncate(other, 2**31)
    (tmp_path / "slots" / "slice1").mkdir(parents=True)
    os.link(used, tmp_path / "slots" / "slice1" / "base-x")
    disks.fetch(store.add(CONTENT))
    assert not old.exists()
    assert cached(tmp_path) == sorted([used.name, newest.name, other.name, digits(CONTENT)])


def test_image_that_does_not_fit_beside_the_images_of_root_disks_is_refused(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    used = placed(tmp_path, "used", 1024, used_at=0)
    (tmp_path / "slots" / "slice1").mkdir(parents=True)
    os.link(used, tmp_path / "slots" / "slice1" / "base-x")
    with pytest.raises(HostRefused, match="does not fit in the cache of 1 GiB"):
        disks.fetch(store.add(CONTENT))
    assert used.exists()


def test_deletion_of_a_large_root_disk_pauses_and_is_continued_by_the_next_call(tmp_path: Path) -> None:
    disks = RootDisksFolder(settings_of(tmp_path), call_seconds=0)
    folder = tmp_path / "slots" / "slice0"
    folder.mkdir(parents=True)
    (folder / "root-x.qcow2").write_bytes(os.urandom(40 * 2**20))
    with pytest.raises(HostUnreadable, match="25165824 bytes are left"):
        disks.wipe("slice0")
    assert disks.found("slice0") == ("slice0", "slice0/.wiping-root-x.qcow2")
    with pytest.raises(HostUnreadable, match="8388608 bytes are left"):
        disks.wipe("slice0")
    disks.wipe("slice0")
    assert disks.found("slice0") == ()


def test_deletion_of_a_root_disk_does_not_follow_links_and_keeps_the_cached_image(
    disks: RootDisksFolder, store: ImageStore, tmp_path: Path
) -> None:
    disk, outside = store.add(CONTENT), tmp_path / "outside"
    disks.fetch(disk)
    disks.make(NAME, disk)
    outside.mkdir()
    (outside / "file").write_text("kept")
    (tmp_path / "slots" / "slice0" / "link").symlink_to(outside / "file")
    disks.wipe("slice0")
    (tmp_path / "slots" / "slice0").symlink_to(outside)
    assert disks.found("slice0") == ("slice0",)
    disks.wipe("slice0")
    assert disks.found("slice0") == ()
    assert (outside / "file").read_text() == "kept"
    assert (tmp_path / "cache" / digits(CONTENT)).read_bytes() == CONTENT


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """An ext4 file system of its own: the file with its blocks, and the folder at which it is mounted."""
    device, folder = tmp_path / "device", tmp_path / "mounted"
    folder.mkdir()
    device.touch()
    os.truncate(device, 64 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(device)], check=True)
    subprocess.run(["mount", "-o", "loop", str(device), str(folder)], check=True)
    try:
        yield device, folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def is_on(device: Path, marker: bytes) -> bool:
    os.sync()
    return marker in device.read_bytes()


@pytest.mark.node
@pytest.mark.parametrize("overwritten", [True, False])
def test_deleted_root_disk_leaves_no_byte_of_the_tenant_on_the_disk_of_the_node(
    ext4: tuple[Path, Path], overwritten: bool
) -> None:
    device, folder = ext4
    disks, path = RootDisksFolder(settings_of(folder)), folder / "slots" / NAME
    path.parent.mkdir(parents=True)
    qemu_img("create", "-q", "-f", "qcow2", str(path), "1G")
    marked = device.with_name("marked")
    marked.write_bytes(MARKER.ljust(64 * 2**10, b"."))
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", f"write -q -s {marked} 500M 64k", str(path)], check=True)
    assert is_on(device, MARKER)
    if overwritten:
        disks.wipe("slice0")
    else:
        # Without the overwriting, this test would not prove anything.
        path.unlink()
    assert is_on(device, MARKER) != overwritten
