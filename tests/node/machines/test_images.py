"""Tests that a node has exactly the guest images that its images folder describes at the moment at which the agent
reads this folder.
"""

from pathlib import Path

import pytest

from events.values import ImageName
from node_agent.host.images import Image, ImagesFolder, publish
from node_agent.host.slices import HostRefused, HostUnreadable
from tests.node.guests import IMAGE


def put(folder: Path, name: str = IMAGE) -> Image:
    home = folder / name
    home.mkdir()
    image = Image(ImageName(name), home / "vmlinuz", home / "initrd.gz", "console=ttyS0 quiet")
    (home / "image.json").write_text("{}")
    if name == IMAGE:
        publish(folder, image)
    return image


def test_published_guest_image_is_found_as_it_was_published(tmp_path: Path) -> None:
    image = put(tmp_path)
    images = ImagesFolder(tmp_path)
    assert images.names() == (IMAGE,)
    assert images.find(IMAGE) == image


def test_guest_image_folder_without_a_description_counts_as_an_absent_image(tmp_path: Path) -> None:
    (tmp_path / IMAGE).mkdir()
    assert ImagesFolder(tmp_path).names() == ()


def test_node_without_an_images_folder_has_no_guest_images(tmp_path: Path) -> None:
    assert ImagesFolder(tmp_path / "none").names() == ()


def test_unknown_guest_image_is_refused_with_its_name_and_the_names_of_the_available_images(
    tmp_path: Path,
) -> None:
    put(tmp_path)
    with pytest.raises(
        HostRefused, match="image windows is not on this node; the images of this node are: lab-guest"
    ):
        ImagesFolder(tmp_path).find(ImageName("windows"))


def test_folder_with_an_invalid_guest_image_name_makes_the_images_of_the_node_unreadable(
    tmp_path: Path,
) -> None:
    put(tmp_path)
    put(tmp_path, "Not A Name")
    with pytest.raises(HostUnreadable, match="Not A Name"):
        ImagesFolder(tmp_path).names()


@pytest.mark.parametrize(
    "description",
    [
        "{",
        '{"name": "lab-guest", "kernel": "vmlinuz", "initrd": "i", "cmdline": "", "more": 1}',
        '{"name": "lab-guest", "kernel": "../../etc/shadow", "initrd": "i", "cmdline": ""}',
        '{"name": "lab-guest", "kernel": "/etc/shadow", "initrd": "i", "cmdline": ""}',
        '{"name": "another", "kernel": "vmlinuz", "initrd": "i", "cmdline": ""}',
    ],
)
def test_invalid_description_of_a_guest_image_makes_the_image_unreadable(
    tmp_path: Path, description: str
) -> None:
    put(tmp_path)
    (tmp_path / IMAGE / "image.json").write_text(description)
    with pytest.raises(HostUnreadable):
        ImagesFolder(tmp_path).find(IMAGE)
