"""Images that a node can boot: a folder with one subfolder per image, each described by its `image.json`.

The folder is read at every call, so that an image can be used as soon as it is complete: `publish` writes the
description last, atomically, and a subfolder without a description is ignored. Paths in a description are relative to
its subfolder. QEMU reads the files itself, and not as root.
"""

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Final, Protocol

from pydantic import AfterValidator, ValidationError

from events.values import ImageName, InvalidValue, image_name
from node_agent.host.slices import HostRefused, HostUnreadable
from tasks import fields

_DESCRIPTION: Final = "image.json"


@dataclass(frozen=True, slots=True)
class Image:
    """A bootable image: a kernel that QEMU boots directly, its initial RAM disk, and its kernel command line."""

    name: ImageName
    kernel: Path
    initrd: Path
    cmdline: str


class Images(Protocol):
    """Interface to the boot images that a node has now."""

    def names(self) -> tuple[ImageName, ...]: ...

    def find(self, name: ImageName) -> Image:
        """Return the boot image with this name. Raises `HostRefused` if the node does not have it."""
        ...


def _inside(raw: str) -> str:
    if PurePath(raw).is_absolute() or ".." in PurePath(raw).parts:
        raise InvalidValue(
            "path of a file in an image description",
            raw,
            "the path must be relative and inside the image's own folder",
        )
    return raw


_File = Annotated[str, AfterValidator(_inside)]


class _Description(fields.Wire):
    name: fields.ImageName
    kernel: _File
    initrd: _File
    cmdline: str


@dataclass(frozen=True, slots=True)
class ImagesFolder:
    """The boot images in the subfolders of `folder`; none if `folder` does not exist."""

    folder: Path

    def names(self) -> tuple[ImageName, ...]:
        """Return the names of all boot images of the node.

        Raises `HostUnreadable` if the description of an image cannot be read or has another name than its folder.
        """
        found = sorted(path.parent.name for path in self.folder.glob(f"*/{_DESCRIPTION}"))
        try:
            return tuple(self._read(image_name(name)).name for name in found)
        except InvalidValue as error:
            raise HostUnreadable(
                f"the folder of images {self.folder} has an invalid entry: {error}"
            ) from error

    def find(self, name: ImageName) -> Image:
        """Return the boot image with this name.

        Raises `HostRefused` if the image does not exist, and `HostUnreadable` if its description is not valid.
        """
        if not (self.folder / name / _DESCRIPTION).is_file():
            raise HostRefused(
                f"image {name} is not on this node; the images of this node are: {', '.join(self.names()) or 'none'}"
            )
        return self._read(name)

    def _read(self, name: ImageName) -> Image:
        path = self.folder / name / _DESCRIPTION
        try:
            described = _Description.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise HostUnreadable(
                f"the description of image {name}, {path}, cannot be read: {error}"
            ) from error
        if described.name != name:
            raise HostUnreadable(
                f"the file {path} describes image {described.name!r}; give the folder of the file the name of the image"
            )
        return Image(name, path.parent / described.kernel, path.parent / described.initrd, described.cmdline)


@dataclass(frozen=True, slots=True)
class FixedImages:
    """Fixed list of boot images, for a simulated node."""

    images: tuple[Image, ...]

    def names(self) -> tuple[ImageName, ...]:
        return tuple(image.name for image in self.images)

    def find(self, name: ImageName) -> Image:
        for image in self.images:
            if image.name == name:
                return image
        raise HostRefused(
            f"image {name} is not on this node; the images of this node are: {', '.join(self.names()) or 'none'}"
        )


def publish(folder: Path, image: Image) -> None:
    """Write the description of an image; all its files are in `folder/<name>`. Then the node can boot the image."""
    home = folder / image.name
    described = _Description(
        name=image.name,
        kernel=str(image.kernel.relative_to(home)),
        initrd=str(image.initrd.relative_to(home)),
        cmdline=image.cmdline,
    )
    temporary = home / f".{_DESCRIPTION}.new"
    temporary.write_text(described.model_dump_json(indent=2) + "\n")
    os.replace(temporary, home / _DESCRIPTION)
