"""The images a node can boot: a folder with one folder per image, each described by its `image.json`.

The catalogue is read afresh at every question, so that an image is usable as soon as its folder is complete:
`publish` writes the description last and in one rename, and an image without one is not there. Paths in a
description are relative to its own folder. QEMU reads the files itself, and not as root.
"""

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Final, Protocol

from pydantic import AfterValidator, ValidationError

from events.values import ImageName, InvalidValue, image_name
from node_agent.slices import HostRefused, HostUnreadable
from tasks import fields

_DESCRIPTION: Final = "image.json"


@dataclass(frozen=True, slots=True)
class Image:
    """A kernel that QEMU boots directly, its first file system, and what the kernel is told."""

    name: ImageName
    kernel: Path
    initrd: Path
    cmdline: str


class Images(Protocol):
    """What the node can boot, as it is now."""

    def names(self) -> tuple[ImageName, ...]: ...

    def find(self, name: ImageName) -> Image:
        """Raises `HostRefused` when the node has no such image."""
        ...


def _inside(raw: str) -> str:
    if PurePath(raw).is_absolute() or ".." in PurePath(raw).parts:
        raise InvalidValue("file of an image", raw, "it must lie in the image's own folder")
    return raw


_File = Annotated[str, AfterValidator(_inside)]


class _Description(fields.Wire):
    name: fields.ImageName
    kernel: _File
    initrd: _File
    cmdline: str


@dataclass(frozen=True, slots=True)
class ImagesFolder:
    """The images below `folder`; a folder that is not there holds none."""

    folder: Path

    def names(self) -> tuple[ImageName, ...]:
        """Raises `HostUnreadable` when a description cannot be read or lies about its name."""
        found = sorted(path.parent.name for path in self.folder.glob(f"*/{_DESCRIPTION}"))
        try:
            return tuple(self._read(image_name(name)).name for name in found)
        except InvalidValue as error:
            raise HostUnreadable(f"folder of images {self.folder}: {error}") from error

    def find(self, name: ImageName) -> Image:
        if not (self.folder / name / _DESCRIPTION).is_file():
            raise HostRefused(
                f"image {name} is not on this node, which has {', '.join(self.names()) or 'none'}"
            )
        return self._read(name)

    def _read(self, name: ImageName) -> Image:
        path = self.folder / name / _DESCRIPTION
        try:
            described = _Description.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise HostUnreadable(f"description of image {name}: {error}") from error
        if described.name != name:
            raise HostUnreadable(f"folder {name} describes an image called {described.name}")
        return Image(name, path.parent / described.kernel, path.parent / described.initrd, described.cmdline)


@dataclass(frozen=True, slots=True)
class FixedImages:
    """Images known beforehand: those of a simulated node."""

    images: tuple[Image, ...]

    def names(self) -> tuple[ImageName, ...]:
        return tuple(image.name for image in self.images)

    def find(self, name: ImageName) -> Image:
        for image in self.images:
            if image.name == name:
                return image
        raise HostRefused(f"image {name} is not on this node, which has {', '.join(self.names()) or 'none'}")


def publish(folder: Path, image: Image) -> None:
    """Describe an image whose files already lie in `folder/<name>`; from here on the node can boot it."""
    home = folder / image.name
    described = _Description(
        name=image.name,
        kernel=str(image.kernel.relative_to(home)),
        initrd=str(image.initrd.relative_to(home)),
        cmdline=image.cmdline,
    )
    fresh = home / f".{_DESCRIPTION}.new"
    fresh.write_text(described.model_dump_json(indent=2) + "\n")
    os.replace(fresh, home / _DESCRIPTION)
