"""Actions of the pages about projections: rebuild a read model, skip or retry an event, and verify all read models."""

from typing import Final

from control_plane.web.actions import (
    NEW,
    REASON,
    Action,
    Call,
    Field,
    Names,
    Resource,
    View,
    Words,
    by_scope,
    plain,
    whole,
    words,
)
from control_plane.web.rendering import in_path
from control_plane.web.visits import Form, Visit


def _skip(form: Form) -> Call:
    position = whole(form.text("position"), "a position")
    return Call("POST", ("skip",), {"position": position, "reason": form.text("reason")})


def _skip_words(name: Words, form: Form) -> Words:
    return ("projections", "skip", *name, form.text("position"), "--reason", form.text("reason"))


def _stopped_at(view: View) -> Names:
    stop = view["stopped"] or (view["rebuild"] or {}).get("stopped")
    return {"position": str(stop["position"])} if stop else {}


PROJECTION_ACTIONS: Final = {
    "rebuild": Action(
        "Rebuild", "rebuild",
        "The tables of the projection are filled again from the whole ledger beside the present ones, and then replace"
        " them. Requests are answered from the present tables until then.",
        plain("POST", "rebuild"), words("projections", "rebuild"),
    ),
    "retry-event": Action(
        "Retry event", "retry", "The event at which the projection stopped is tried again.",
        plain("POST", "retry"), words("projections", "retry"), preposition="of",
    ),
    "skip": Action(
        "Skip event", "skip",
        "The event at which the projection stopped is skipped, now and in every rebuild. The tables do not contain it.",
        _skip, _skip_words, dangerous=True, asks_name=True, preposition="of", initial=_stopped_at,
        fields=(Field("position", "Position of the event", "number", example="POSITION"), REASON),
    ),
}  # fmt: skip
VERIFICATION_ACTIONS: Final = {
    "verify": Action(
        "Start a verification", "verify",
        "The ledger is replayed from its beginning, and compared row by row with every table. Nothing is changed. A"
        " verification that was requested and has not started yet is used instead of a new one.",
        plain("POST"), words("projections", "verify"), made=lambda answer: f"/verifications/{in_path(answer['id'])}",
    ),
}  # fmt: skip


async def _load(visit: Visit, _names: Names) -> View:
    # A caller that may not read the list gets the refusal of the API.
    await visit.get("verifications", limit=1)
    return {"allowed_actions": by_scope(visit, *VERIFICATION_ACTIONS, scope="fleet:write")}


PROJECTION: Final = Resource(
    "projection", PROJECTION_ACTIONS,
    path=lambda names: ("projections", names["projection"]),
    page=lambda _names: "/projections",
    facts=lambda view: {
        "Tables": ", ".join(view["tables"]),
        "Position": view["position"],
        "Stopped": view["stopped"] and view["stopped"]["error"],
    },
    label=lambda names: names["projection"],
    words=lambda names: (names["projection"],),
)  # fmt: skip
VERIFICATIONS: Final = Resource(
    "verification", VERIFICATION_ACTIONS,
    path=lambda _names: ("verifications",),
    page=lambda _names: "/verifications",
    facts=lambda _view: {},
    label=lambda _names: NEW,
    words=lambda _names: (),
    load=_load,
)  # fmt: skip
