"""Devices that QEMU reports through libvirt's monitor commands and that the domain's XML does not show.

libvirt gives each device of a domain an alias, and names QEMU's devices, back ends and character devices by it. A
device with a different name was added through QEMU's monitor, without libvirt.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_ALIAS: Final = re.compile(r"<alias name='([^']*)'")
_MONITOR: Final = "charmonitor"
_OTHER_OBJECTS: Final = ("child<filter-", "child<colo-")
"""Types of objects that copy or redirect a card's frames."""
Ask = Callable[[str, dict[str, str]], Any]
"""A QMP command with its arguments, and what it returns."""


def foreign_devices(xml: str, ask: Ask) -> Iterator[str]:
    """Yield, in words, what QEMU has and the domain's XML does not show."""
    aliases = set(_ALIAS.findall(xml))
    for device in _children(ask, "/machine/peripheral"):
        if device["name"] not in aliases:
            yield f"device {device['name']} ({_type(device)})"
    for device in _children(ask, "/machine/peripheral-anon"):
        yield f"device ({_type(device)})"
    for found in _children(ask, "/objects"):
        if found["type"].startswith(_OTHER_OBJECTS):
            yield f"object {found['name']} ({_type(found)})"
    for character in ask("query-chardev", {}):
        label = character["label"]
        if label != _MONITOR and label.removeprefix("char") not in aliases:
            yield f"character device {label} ({character['filename']})"
    for name in _networks(ask("human-monitor-command", {"command-line": "info network"})):
        if name not in aliases and name.removeprefix("host") not in aliases:
            yield f"network back end {name}"


def _children(ask: Ask, path: str) -> Iterator[dict[str, str]]:
    return (each for each in ask("qom-list", {"path": path}) if each["type"].startswith("child<"))


def _type(device: dict[str, str]) -> str:
    return device["type"].removeprefix("child<").removesuffix(">")


def _networks(listed: str) -> Iterator[str]:
    """Names in QEMU's own list, `net0: index=0,...` and below it ` \\ hostnet0: ...`."""
    for line in listed.splitlines():
        name, colon, _ = line.strip().removeprefix("\\").strip().partition(":")
        if colon:
            yield name


def parsed(answer: str) -> Any:
    """What a QMP command returned."""
    return json.loads(answer)["return"]
