"""Form that creates an allocation, with a preview of its placement."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

from control_plane.web.calls import Refusal
from control_plane.web.cookies import ROOT
from control_plane.web.pages.allocation_actions import seconds
from control_plane.web.pages.commands import Commands
from control_plane.web.rendering import in_path
from control_plane.web.visits import Form, Visit, both, nothing, problem, see_other

_DEFAULTS: Final = {
    "slot_count": "1",
    "hours": "1",
    "network_mode": "private-nat",
    "replace_on_failure": "on",
}
_MOST: Final = 500


async def show(visit: Visit) -> Response:
    return await _page(visit, HTTPStatus.OK, {**_DEFAULTS, **visit.request.query_params})


async def create(visit: Visit) -> Response:
    """Create the allocation of the form, or show its preview, or show the form with the reasons of a refusal."""
    form = await visit.form()
    try:
        body = _body(form)
        if form.text("preview"):
            preview = await visit.send("POST", "placements", "preview", body=body)
            return await _page(visit, HTTPStatus.OK, form.values(), preview=preview, body=body)
        key = form.text("idempotency_key")
        created = await visit.send("POST", "allocations", body=body, idempotency_key=key)
    except Refusal as refusal:
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            raise
        return await _page(visit, refusal.status, form.values(), refused=refusal.problem)
    return see_other(f"{ROOT}/allocations/{in_path(created['id'])}?notice=created")


async def _page(
    visit: Visit,
    status: int,
    values: Mapping[str, str],
    *,
    refused: Mapping[str, Any] | None = None,
    preview: Mapping[str, Any] | None = None,
    body: object = None,
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
        command=None if body is None else Commands(visit.request).creation(body),
    )


def _body(form: Form) -> dict[str, Any]:
    """Return the request body of a form. Fields that are empty are omitted. Raises `Refusal`."""
    body: dict[str, Any] = {
        "sku": form.text("sku"),
        "network_mode": form.text("network_mode"),
        "ssh_authorized_keys": [line.strip() for line in form.text("ssh_keys").splitlines() if line.strip()],
        "slot_count": _number(form.text("slot_count")),
        "lease_seconds": seconds(form.text("hours")),
        "labels": _labels(form.text("labels")),
        "replace_on_failure": bool(form.text("replace_on_failure")),
    }
    optional = ("project", "image", "app_profile", "node", "user_data")
    return body | {name: form.text(name) for name in optional if form.text(name)}


def _labels(text: str) -> dict[str, str]:
    pairs = [line.strip().partition("=") for line in text.splitlines() if line.strip()]
    if wrong := [name for name, separator, _ in pairs if not separator]:
        raise _invalid(f"label {wrong[0][:64]!r} is not of the form name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _invalid(f"{text[:32]!r} is not a number of slots")
    return int(text)


def _invalid(message: str) -> Refusal:
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", message, "Correct the value.")
