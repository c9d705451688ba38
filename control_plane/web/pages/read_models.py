"""Pages of the projections with their positions, and of the verifications that compare their tables with the ledger."""

from typing import Final

from starlette.responses import Response

from control_plane.web.actions import View, by_scope
from control_plane.web.pages.read_model_actions import PROJECTION_ACTIONS, VERIFICATION_ACTIONS
from control_plane.web.rendering import unnamed
from control_plane.web.visits import Visit

UNFINISHED: Final = frozenset({"asked", "running"})
"""States of a verification without a result."""


async def show_projections(visit: Visit) -> Response:
    listed = await visit.get("projections", cursor=visit.query("cursor"))
    found = listed["items"]
    why = {each["name"]: _reasons(each) for each in found}
    return visit.render(
        "projections.html",
        projections=found,
        next_cursor=listed["next_cursor"],
        in_progress=any(each["rebuild"] or _lag(each) for each in found),
        lags={each["name"]: _lag(each) for each in found},
        actions=PROJECTION_ACTIONS,
        why=why,
        reasons=[*dict.fromkeys(reason for reasons in why.values() for reason in reasons.values())],
    )


def _reasons(projection: View) -> dict[str, str]:
    """Return the reasons of the actions that are not allowed on a projection, by the name of the action. The sentences
    do not name the projection, so that the page states each once.
    """
    return {
        name: f"{action.title}: {unnamed(allowed['reason'], projection['name'])}"
        for name, action in PROJECTION_ACTIONS.items()
        if not (allowed := projection["allowed_actions"][action.allowed_by])["allowed"]
    }


def _lag(projection: dict[str, int | None]) -> int:
    """Return the number of positions that a projection has not reached; 0 for one that the append itself updates."""
    position, last = projection["position"], projection["last_position"]
    return 0 if position is None or last is None else max(last - position, 0)


async def show_verifications(visit: Visit) -> Response:
    listed = await visit.get("verifications", cursor=visit.query("cursor"))
    return visit.render(
        "verifications.html",
        verifications=listed["items"],
        next_cursor=listed["next_cursor"],
        in_progress=any(each["state"] in UNFINISHED for each in listed["items"]),
        starting=VERIFICATION_ACTIONS["verify"],
        allowed=by_scope(visit, "verify", scope="fleet:write")["verify"],
    )


async def show_verification(visit: Visit) -> Response:
    found = await visit.get("verifications", visit.request.path_params["verification"])
    return visit.render("verification.html", it=found, in_progress=found["state"] in UNFINISHED)
