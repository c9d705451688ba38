"""Tests that any object in place of a slot's disk folder is listed and removed, and that nothing outside of this folder
is removed.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from node_agent.drivers.machines.disks import DisksFolder


def a_file(place: Path, _elsewhere: Path) -> None:
    place.write_text("foreign")


def a_link_to_a_folder(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere)


def a_link_to_nothing(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere / "gone")


def a_folder_with_a_link_out_of_it(place: Path, elsewhere: Path) -> None:
    place.mkdir()
    (place / "out").symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("planted", "listed"),
    [
        (a_file, ("slice0",)),
        (a_link_to_a_folder, ("slice0",)),
        (a_link_to_nothing, ("slice0",)),
        (a_folder_with_a_link_out_of_it, ("slice0", "slice0/out")),
    ],
)
def test_foreign_object_in_place_of_a_slots_disk_folder_is_listed_and_removed_and_its_link_target_stays(
    planted: Callable[[Path, Path], None], listed: tuple[str, ...], tmp_path: Path
) -> None:
    disks, elsewhere = DisksFolder(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("another's")
    planted(tmp_path / "slice0", elsewhere)
    assert disks.found("slice0") == listed
    disks.wipe("slice0")
    assert disks.found("slice0") == ()
    assert (elsewhere / "kept").read_text() == "another's"


def test_wiping_the_absent_disk_folder_of_a_slot_changes_nothing(tmp_path: Path) -> None:
    disks = DisksFolder(tmp_path)
    disks.wipe("slice0")
    disks.write("slice1/seed.iso", b"seed")
    disks.wipe("slice0")
    assert disks.found("slice1") == ("slice1", "slice1/seed.iso")


def test_serial_log_is_read_with_its_rotated_parts_in_order_and_limited_to_the_last_bytes(
    tmp_path: Path,
) -> None:
    disks, folder = DisksFolder(tmp_path), tmp_path / "slice0"
    assert disks.read_log("slice0/console.log", 100) == (b"", 0)
    folder.mkdir()
    for number in range(11):
        (folder / f"console.log.{number}").write_text(f"<{number}>")
    (folder / "console.log").write_text("newest")
    text = "".join(f"<{number}>" for number in reversed(range(11))) + "newest"
    assert disks.read_log("slice0/console.log", 100) == (text.encode(), len(text))
    assert disks.read_log("slice0/console.log", 11) == (b"<1><0>newest"[1:], len(text))
    assert disks.read_log("slice0/console.log", 2) == (b"st", len(text))
