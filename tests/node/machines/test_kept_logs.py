"""Tests of the folder with the logs of removed slices: permissions, names, and interrupted removals."""

import shutil
from pathlib import Path
from uuid import UUID

import pytest

from node_agent.drivers.machines.disks import DisksFolder
from node_agent.drivers.machines.kept_logs import KeptLogsFolder
from node_agent.host.slices import HostRefused

GUEST, OTHER = UUID(int=1), UUID(int=2)


def test_kept_log_and_its_folder_are_readable_only_for_their_owner(tmp_path: Path) -> None:
    KeptLogsFolder(tmp_path / "logs").keep("slice0", GUEST, b"secret", 6)
    [log] = (tmp_path / "logs").iterdir()
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700


def test_each_slot_has_one_kept_log_and_a_newer_one_of_the_same_guest_replaces_it(tmp_path: Path) -> None:
    logs = KeptLogsFolder(tmp_path)
    for slot, guest, content in (
        ("slice1", GUEST, b"a"),
        ("slice10", GUEST, b"b"),
        ("slice1", OTHER, b"c"),
        ("slice1", OTHER, b"de"),
    ):
        logs.keep(slot, guest, content, 10 + len(content))
    assert len([*tmp_path.iterdir()]) == 2
    assert logs.find("slice1", GUEST, 10) is None
    assert logs.find("slice1", OTHER, 10) == (b"de", 12)
    assert logs.find("slice10", GUEST, 10) == (b"b", 11)


def test_node_without_kept_logs_finds_and_deletes_none(tmp_path: Path) -> None:
    logs = KeptLogsFolder(tmp_path / "absent")
    assert logs.find("slice0", GUEST, 10) is None
    logs.delete_expired()


def test_folder_that_cannot_be_created_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    with pytest.raises(HostRefused):
        KeptLogsFolder(tmp_path / "logs").keep("slice0", GUEST, b"", 0)


def test_interrupted_wipe_of_a_disk_folder_has_deleted_the_seed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = DisksFolder(tmp_path)
    disks.write(f"slice0/seed-{GUEST}-0123456789ab.iso", b"seed")
    disks.write("slice0/console.log", b"log")

    def interrupted(_path: Path) -> None:
        raise OSError("interrupted")

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(HostRefused):
        disks.wipe("slice0")
    assert disks.found("slice0") == ("slice0", "slice0/console.log")
