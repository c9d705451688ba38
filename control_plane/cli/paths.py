"""Paths of the API that hold a name somebody typed: the name is quoted, so that it stays one part of the path."""

from urllib.parse import quote


def allocation_path(allocation: str, *further: str) -> str:
    return "/".join(["/v1/allocations", quote(allocation, safe=""), *further])


def ingress_path(allocation: str, ingress: str) -> str:
    return allocation_path(allocation, "ingress", quote(ingress, safe=""))


def node_path(node: str, *further: str) -> str:
    return "/".join(["/v1/nodes", quote(node, safe=""), *further])


def history_path(kind: str, name: str, *further: str) -> str:
    """Of a thing whose name may hold slashes, which stay as they are."""
    return "/".join(["/v1/history", quote(kind, safe=""), quote(name, safe="/"), *further])


def slot_path(slot: str, *further: str) -> str:
    """Of a slot named `<node>/<index>`."""
    node, _, index = slot.rpartition("/")
    return "/".join([node_path(node), "slots", quote(index, safe=""), *further])


def task_path(task: str, *further: str) -> str:
    return "/".join(["/v1/tasks", quote(task, safe=""), *further])


def parked_path(stream: str, *further: str) -> str:
    return "/".join(["/v1/parked", quote(stream, safe=""), *further])


def projection_path(projection: str, *further: str) -> str:
    return "/".join(["/v1/projections", quote(projection, safe=""), *further])
