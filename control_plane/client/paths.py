"""API paths that contain a name from the caller. Every name passes `_part`, so that it remains one path segment.

Quoting alone is not enough: servers treat `%2F` as a slash, and clients remove `..` with the segment before it, so that
the request would reach a different route.
"""

from typing import Final
from urllib.parse import quote

from control_plane.client.errors import InvalidName

_NO_NAMES: Final = frozenset({"", ".", ".."})
_OF_TWO_PARTS: Final = frozenset({"slot", "ingress", "device"})


def _part(name: str, what: str) -> str:
    """Quote a name as one path segment. Raises `InvalidName` if it is not exactly one segment."""
    if name in _NO_NAMES or "/" in name:
        raise InvalidName(f"{name!r} is not a valid name of {what}")
    return quote(name, safe="")


def allocation_path(allocation: str, *further: str) -> str:
    return "/".join(["/v1/allocations", _part(allocation, "an allocation"), *further])


def ingress_path(allocation: str, ingress: str) -> str:
    return allocation_path(allocation, "ingress", _part(ingress, "an ingress"))


def node_path(node: str, *further: str) -> str:
    return "/".join(["/v1/nodes", _part(node, "a node"), *further])


def project_path(project: str, *further: str) -> str:
    return "/".join(["/v1/projects", _part(project, "a project"), *further])


def reservation_path(project: str, sku: str) -> str:
    return project_path(project, "reservations", _part(sku, "a SKU"))


def entry_path(listed: str, name: str, *further: str) -> str:
    """Return the path of an entry of the catalogue; `listed` is the path of the list of its kind."""
    return "/".join([listed, _part(name, "an entry of the catalogue"), *further])


def key_path(key: str, *further: str) -> str:
    return "/".join(["/v1/keys", _part(key, "an API key"), *further])


def console_path(console: str, *further: str) -> str:
    return "/".join(["/v1/console-sessions", _part(console, "a console session"), *further])


def session_path(session: str, *further: str) -> str:
    return "/".join(["/v1/sessions", _part(session, "a session"), *further])


def service_account_path(account: str, *further: str) -> str:
    return "/".join(["/v1/service-accounts", _part(account, "a service account"), *further])


def history_path(kind: str, name: str, *further: str) -> str:
    """Return the path of a resource's history. Names of slots, ingress rules and devices have two segments."""
    parts = name.split("/", 1) if kind in _OF_TWO_PARTS else [name]
    return "/".join(
        ["/v1/history", kind, *(_part(part, f"a resource of kind {kind}") for part in parts), *further]
    )


def slot_path(slot: str, *further: str) -> str:
    """Return the path of a slot, which is named `<node>/<index>`."""
    node, _, index = slot.rpartition("/")
    return node_path(node, "slots", _part(index, "a slot"), *further)


def task_path(task: str, *further: str) -> str:
    return "/".join(["/v1/tasks", _part(task, "a task"), *further])


def parked_path(stream: str, *further: str) -> str:
    return "/".join(["/v1/parked", _part(stream, "a stream"), *further])


def projection_path(projection: str, *further: str) -> str:
    return "/".join(["/v1/projections", _part(projection, "a projection"), *further])


def period_path(period: str, *further: str) -> str:
    return "/".join(["/v1/usage/periods", _part(period, "a billing period"), *further])


def verification_path(verification: str) -> str:
    return f"/v1/verifications/{_part(verification, 'a verification')}"


def usage_params(
    *,
    since: str | None = None,
    to: str | None = None,
    period: str | None = None,
    project: str | None = None,
    sku: str | None = None,
    label: str | None = None,
) -> dict[str, str | None]:
    """Return the query parameters of `/v1/usage` and of its entries and exports."""
    return {"from": since, "to": to, "period": period, "project": project, "sku": sku, "label": label}
