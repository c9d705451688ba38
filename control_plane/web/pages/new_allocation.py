"""Form that creates an allocation, with a live preview of its placement, price and quotas."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from control_plane.web.actions import by_scope, invalid, seconds, whole
from control_plane.web.calls import Refusal
from control_plane.web.commands import Command, command_of
from control_plane.web.cookies import ROOT
from control_plane.web.rendering import LIMIT_LABELS, in_path
from control_plane.web.visits import Form, Visit, both, nothing, see_other

_DEFAULTS: Final = {
    "slot_count": "1",
    "hours": "1",
    "network_mode": "private-nat",
    "replace_on_failure": "on",
}
_DEFAULT_PROJECT: Final = "default"
"""Project of requests that name none."""
_MOST: Final = 500
_HOUR: Final = 3600
_MINUTE: Final = 60
_DECIMALS: Final = 6
_FIELDS: Final = {
    "/ssh_authorized_keys": "SSH public keys",
    "/sku": "SKU",
    "/image": "Image",
    "/app_profile": "App profile",
    "/slot_count": "Slots",
    "/lease_seconds": "Lease",
    "/project": "Project",
    "/network_mode": "Network mode",
    "/node": "Node",
    "/labels": "Labels",
    "/user_data": "User-data",
    "/wait_for_capacity": "Wait",
}
"""Labels of the form's fields by the fields of the request to which the API objects."""


class Preview(NamedTuple):
    """What a form would create: `placement` is the response of the API, or `refused` the problem."""

    placement: Mapping[str, Any] | None
    refused: Mapping[str, Any] | None
    price: tuple[Decimal, Decimal] | None
    """Price of the allocation per hour, and until the end of its lease."""
    limits: Sequence["LimitUse"]
    command: Command | None


class LimitUse(NamedTuple):
    """A limit of a project or caller, its `holder`, with what is used of it and what a request would add."""

    holder: str
    name: str
    used: str | int | None
    requested: str | int
    limit: str | int
    is_exceeded: bool


async def show(visit: Visit) -> Response:
    return await _page(visit, HTTPStatus.OK, {**_DEFAULTS, **_project(visit), **visit.request.query_params})


def _project(visit: Visit) -> Mapping[str, str]:
    """Return the initial project of the form: the first one of a caller that may not use the default project."""
    projects = visit.user["projects"]
    return {"project": projects[0]} if projects and _DEFAULT_PROJECT not in projects else {}


async def create(visit: Visit) -> Response:
    """Create the allocation of the form, or show its preview, or show the form with the reasons of a refusal."""
    form = await visit.form()
    if form.text("preview"):
        preview = await _preview(visit, form)
        status = HTTPStatus.OK if preview.refused is None else preview.refused["status"]
        return await _page(visit, status, form.values(), preview=preview)
    try:
        body, key = _body(form), form.text("idempotency_key")
        created = await visit.send("POST", "allocations", body=body, idempotency_key=key)
    except Refusal as refusal:
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            raise
        return await _page(visit, refusal.status, form.values(), refused=refusal.problem)
    return see_other(f"{ROOT}/allocations/{in_path(created['id'])}?notice=created")


async def preview(visit: Visit) -> Response:
    """Return the preview of a form that is being filled in, as a part of its page."""
    return visit.render("preview.html", preview=await _preview(visit, await visit.form()), labels=_FIELDS)


async def _preview(visit: Visit, form: Form) -> Preview:
    """Return what the form would create now. Raises `Refusal` only if the session is no longer valid."""
    try:
        body = _body(form)
        # Placement may choose none of the other SKUs, so the price is that of the chosen one.
        placement, sku, project, caller = await both(
            visit.send("POST", "placements", "preview", body=body),
            visit.try_get("skus", body["sku"]) if body["sku"] else nothing(),
            visit.try_get("projects", body.get("project", _DEFAULT_PROJECT))
            if visit.allows("projects:read")
            else nothing(),
            visit.get("principals", "limits") if visit.allows("access:read") else nothing(),
        )
    except Refusal as refusal:
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            raise
        return Preview(None, refusal.problem, None, (), None)
    command = command_of(
        visit.request, "As a command", cli=(), method="POST", path=("allocations",), body=body
    )
    price = None if sku is None else _price(sku["price_per_hour"], body)
    requested = {} if sku is None or price is None else _amounts(sku, body, price)
    limits = _limits(placement["exceeded"], _holders(project, caller), requested)
    return Preview(placement, None, price, [*limits], command)


def _holders(
    project: Mapping[str, Any] | None, caller: Mapping[str, Any] | None
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the project and the caller of a request, as far as the caller may read them: the name, limits and use."""
    if project is not None:
        committed = project["budget"] and project["budget"]["committed"]
        yield project["id"], project["limits"], {**(project["used"] or {}), "budget_per_month": committed}
    if caller is not None:
        yield caller["actor"], caller["limits"], caller["used"]


def _limits(
    exceeded: Sequence[Mapping[str, Any]],
    holders: Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]],
    requested: Mapping[str, Any],
) -> Iterator[LimitUse]:
    """Yield the limits of a request: first those that it would exceed, as the API returns them."""
    for each in exceeded:
        yield LimitUse(
            each["holder"],
            each["limit_name"],
            each["used"],
            each["requested"],
            each["limit"],
            is_exceeded=True,
        )
    known = {(each["holder"], each["limit_name"]) for each in exceeded}
    for holder, limits, used in holders:
        for name in LIMIT_LABELS:
            if limits.get(name) is not None and name in requested and (holder, name) not in known:
                yield LimitUse(holder, name, used.get(name), requested[name], limits[name], is_exceeded=False)


def _amounts(
    sku: Mapping[str, Any], body: Mapping[str, Any], price: tuple[Decimal, Decimal]
) -> Mapping[str, Any]:
    """Return what an allocation adds to each limit. Of a budget, this is the price of the whole lease."""
    count = body["slot_count"]
    return {
        "slots": count,
        "gpus": count * sku["gpu_count"],
        "vcpus": count * sku["vcpus"],
        "memory_mib": count * sku["memory_mib"],
        "public_addresses": 0,
        "public_ports": 0,
        "waiting_requests": 1 if "wait_for_capacity" in body else 0,
        "max_lease_seconds": body["lease_seconds"],
        "price_per_hour": price[0],
        "budget_per_month": price[1],
    }


def _price(per_slot: str, body: Mapping[str, Any]) -> tuple[Decimal, Decimal]:
    """Return the price of an allocation per hour and of its whole lease, with the decimals of prices in the API."""
    per_hour = Decimal(per_slot) * body["slot_count"]
    return per_hour, round(per_hour * body["lease_seconds"] / _HOUR, _DECIMALS)


async def _page(
    visit: Visit,
    status: int,
    values: Mapping[str, str],
    *,
    refused: Mapping[str, Any] | None = None,
    preview: Preview | None = None,
) -> Response:
    skus, images, profiles, projects = await both(
        visit.get("skus", state="offered", limit=_MOST),
        visit.get("images", state="offered", limit=_MOST),
        visit.get("app-profiles", state="offered", limit=_MOST),
        visit.get("projects", state="active", limit=_MOST) if visit.allows("projects:read") else nothing(),
    )
    return visit.render(
        "new_allocation.html",
        status,
        skus=skus["items"],
        images=images["items"],
        profiles=profiles["items"],
        projects=[] if projects is None else projects["items"],
        values=values,
        refused=refused,
        preview=preview,
        labels=_FIELDS,
        allowed=by_scope(visit, "create", scope="allocations:write")["create"],
    )


def _body(form: Form) -> dict[str, Any]:
    """Return the request body of a form. Fields that are empty are omitted. Raises `Refusal`."""
    body: dict[str, Any] = {
        "sku": form.text("sku"),
        "network_mode": form.text("network_mode"),
        "ssh_authorized_keys": [line.strip() for line in form.text("ssh_keys").splitlines() if line.strip()],
        "slot_count": whole(form.text("slot_count"), "a number of slots"),
        "lease_seconds": seconds(form.text("hours"), "hours", _HOUR),
        "labels": _labels(form.text("labels")),
        "replace_on_failure": bool(form.text("replace_on_failure")),
        "gateway_access": bool(form.text("gateway_access")),
    }
    optional = ("project", "image", "app_profile", "node", "user_data")
    return body | {name: form.text(name) for name in optional if form.text(name)} | _wait(form)


def _wait(form: Form) -> dict[str, Any]:
    """Return how the request waits for capacity; nothing if it does not wait. Raises `Refusal`."""
    if not form.text("wait_minutes"):
        return {}
    wait: dict[str, Any] = {"wait_seconds": seconds(form.text("wait_minutes"), "minutes", _MINUTE)}
    if priority := form.text("priority"):
        sign = -1 if priority.startswith("-") else 1
        wait["priority"] = sign * whole(priority.removeprefix("-"), "a priority")
    return {"wait_for_capacity": wait}


def _labels(text: str) -> dict[str, str]:
    pairs = [line.strip().partition("=") for line in text.splitlines() if line.strip()]
    if wrong := [name for name, separator, _ in pairs if not separator]:
        raise invalid(f"label {wrong[0][:64]!r} is not of the form name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}
