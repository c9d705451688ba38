"""Actions on an allocation: each has a page that states its effect and asks for confirmation."""

from http import HTTPStatus
from typing import Final, NamedTuple

from starlette.responses import Response

from control_plane.web.cookies import ROOT
from control_plane.web.rendering import in_path
from control_plane.web.visits import Visit, problem, see_other


class Action(NamedTuple):
    """An action on an allocation: the request of the API, and what it does."""

    title: str
    allowed_by: str
    """Name of the action in `allowed_actions`."""
    method: str
    path: tuple[str, ...]
    effect: str
    dangerous: bool = False


ACTIONS: Final = {
    "stop": Action(
        "Stop", "stop", "POST", ("stop",),
        "The slices are stopped and become unreachable. Slots, addresses and the lease are kept.",
        dangerous=True,
    ),
    "start": Action("Start", "start", "POST", ("start",), "The slices are started in the same slots."),
    "renew": Action(
        "Renew lease", "renew_lease", "POST", ("lease",),
        "The lease ends the given time from now. A lease that ends later already is not changed.",
    ),
    "release": Action(
        "Release", "release", "DELETE", (),
        "The slices and all data on their disks are deleted, and the addresses are given up. This cannot be undone.",
        dangerous=True,
    ),
}  # fmt: skip


async def confirm(visit: Visit) -> Response:
    """Show the form of an action with its effect."""
    name, action = _requested(visit)
    found = await visit.get("allocations", name)
    return visit.render(
        "allocation_action.html", allocation=found, name=action, action=ACTIONS[action],
        allowed=found["allowed_actions"][ACTIONS[action].allowed_by],
    )  # fmt: skip


async def act(visit: Visit) -> Response:
    name, action = _requested(visit)
    form, chosen = await visit.form(), ACTIONS[action]
    body = {"lease_seconds": seconds(form.text("hours"))} if action == "renew" else None
    key = form.text("idempotency_key")
    await visit.send(chosen.method, "allocations", name, *chosen.path, body=body, idempotency_key=key)
    return see_other(f"{ROOT}/allocations/{in_path(name)}?notice={action}")


def seconds(hours: str) -> int:
    """Return the seconds of a number of hours that a form has, such as `1` or `0.5`. Raises `Refusal`."""
    try:
        return round(float(hours) * 3600)
    except (ValueError, OverflowError):
        message = f"{hours[:32]!r} is not a number of hours"
        raise problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", message, "Enter a number such as 1 or 0.5."
        ) from None


def _requested(visit: Visit) -> tuple[str, str]:
    """Return the allocation and the action of a request. Raises `Refusal`."""
    name, action = visit.request.path_params["allocation"], visit.request.path_params["action"]
    if action not in ACTIONS:
        message = f"there is no action {action!r} on an allocation; choose one of {', '.join(ACTIONS)}"
        raise problem(HTTPStatus.NOT_FOUND, "not_found", message, "Open the page of the allocation.")
    return name, action
