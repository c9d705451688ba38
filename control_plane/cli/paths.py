"""Paths of the API that hold a name somebody typed. Every name goes through `_part`, so that it stays one part.

Quoting alone does not do that: servers take `%2F` for a slash, and clients take `..` away with the part before it, so
that another route would answer than the one that was asked.
"""

from typing import Final
from urllib.parse import quote

from control_plane.cli.failures import WrongUsage

_NO_NAMES: Final = frozenset({"", ".", ".."})
_OF_TWO_PARTS: Final = frozenset({"slot", "mapping", "device"})


def _part(name: str, what: str) -> str:
    """Raises `WrongUsage` for what would be less or more than one part."""
    if name in _NO_NAMES or "/" in name:
        raise WrongUsage(f"{name!r} is no name of {what}")
    return quote(name, safe="")


def allocation_path(allocation: str, *further: str) -> str:
    return "/".join(["/v1/allocations", _part(allocation, "an allocation"), *further])


def ingress_path(allocation: str, ingress: str) -> str:
    return allocation_path(allocation, "ingress", _part(ingress, "a way in"))


def node_path(node: str, *further: str) -> str:
    return "/".join(["/v1/nodes", _part(node, "a node"), *further])


def history_path(kind: str, name: str, *further: str) -> str:
    """Of a thing of which some kinds have names of two parts."""
    parts = name.split("/", 1) if kind in _OF_TWO_PARTS else [name]
    return "/".join(
        ["/v1/history", kind, *(_part(part, f"a thing of kind {kind}") for part in parts), *further]
    )


def slot_path(slot: str, *further: str) -> str:
    """Of a slot named `<node>/<index>`."""
    node, _, index = slot.rpartition("/")
    return node_path(node, "slots", _part(index, "a slot"), *further)


def task_path(task: str, *further: str) -> str:
    return "/".join(["/v1/tasks", _part(task, "a task"), *further])


def parked_path(stream: str, *further: str) -> str:
    return "/".join(["/v1/parked", _part(stream, "a stream"), *further])


def projection_path(projection: str, *further: str) -> str:
    return "/".join(["/v1/projections", _part(projection, "a projection"), *further])
