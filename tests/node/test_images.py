"""The images of a node are what its folder describes at the moment one asks."""

from pathlib import Path

import pytest

from events.values import ImageName
from node_agent.images import Image, ImagesFolder, publish
from node_agent.slices import HostRefused, HostUnreadable
from tests.node.guests import IMAGE


def put(folder: Path, name: str = IMAGE) -> Image:
    home = folder / name
    home.mkdir()
    image = Image(ImageName(name), home / "vmlinuz", home / "initrd.gz", "console=ttyS0 quiet")
    (home / "image.json").write_text("{}")
    if name == IMAGE:
        publish(folder, image)
    return image


def test_a_published_image_is_found_as_it_was_published(tmp_path: Path) -> None:
    image = put(tmp_path)
    images = ImagesFolder(tmp_path)
    assert images.names() == (IMAGE,)
    assert images.find(IMAGE) == image


def test_an_image_is_not_there_before_its_description_is(tmp_path: Path) -> None:
    (tmp_path / IMAGE).mkdir()
    assert ImagesFolder(tmp_path).names() == ()


def test_a_node_without_a_folder_has_no_images(tmp_path: Path) -> None:
    assert ImagesFolder(tmp_path / "none").names() == ()


def test_an_unknown_image_is_refused_by_its_name_and_with_those_there_are(tmp_path: Path) -> None:
    put(tmp_path)
    with pytest.raises(HostRefused, match="image windows is not on this node, which has lab-guest"):
        ImagesFolder(tmp_path).find(ImageName("windows"))


def test_a_folder_that_is_called_as_no_image_can_be_makes_the_images_unreadable(tmp_path: Path) -> None:
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
def test_a_description_that_is_wrong_in_any_way_is_not_used(tmp_path: Path, description: str) -> None:
    put(tmp_path)
    (tmp_path / IMAGE / "image.json").write_text(description)
    with pytest.raises(HostUnreadable):
        ImagesFolder(tmp_path).find(IMAGE)
