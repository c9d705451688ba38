"""Devices that QEMU reports through libvirt's monitor commands and that the domain's XML does not show.

libvirt gives each device of a domain an alias, and uses the alias to name QEMU's devices, back ends and character
devices. A device with a different name was added through QEMU's monitor and not through libvirt.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_ALIAS: Final = re.compile(r"<alias name='([^']*)'")
_MONITOR: Final = "charmonitor"
_OTHER_OBJECTS: Final = ("child<filter-", "child<colo-")
"""Prefixes of the types of QEMU objects that copy or redirect the frames of a network card."""
Query = Callable[[str, dict[str, str]], Any]
"""A function that executes a QMP command with arguments and returns its result."""


def foreign_devices(xml: str, query: Query) -> Iterator[str]:
    """Describe the devices, objects and back ends that QEMU has and that the domain's XML does not contain."""
    aliases = set(_ALIAS.findall(xml))
    for device in _children(query, "/machine/peripheral"):
        if device["name"] not in aliases:
            yield f"device {device['name']} ({_type(device)})"
    for device in _children(query, "/machine/peripheral-anon"):
        yield f"device ({_type(device)})"
    for found in _children(query, "/objects"):
        if found["type"].startswith(_OTHER_OBJECTS):
            yield f"object {found['name']} ({_type(found)})"
    for character in query("query-chardev", {}):
        label = character["label"]
        if label != _MONITOR and label.removeprefix("char") not in aliases:
            yield f"character device {label} ({character['filename']})"
    for name in _networks(query("human-monitor-command", {"command-line": "info network"})):
        if name not in aliases and name.removeprefix("host") not in aliases:
            yield f"network back end {name}"


def _children(query: Query, path: str) -> Iterator[dict[str, str]]:
    return (each for each in query("qom-list", {"path": path}) if each["type"].startswith("child<"))


def _type(device: dict[str, str]) -> str:
    return device["type"].removeprefix("child<").removesuffix(">")


def _networks(listed: str) -> Iterator[str]:
    """Yield the names in QEMU's list of networks. Its lines begin with `NAME: ` or ` \\ NAME: `."""
    for line in listed.splitlines():
        name, colon, _ = line.strip().removeprefix("\\").strip().partition(":")
        if colon:
            yield name


def parsed(answer: str) -> Any:
    """Return the result in `answer`, the response of QEMU's monitor (QMP) to a command."""
    return json.loads(answer)["return"]
