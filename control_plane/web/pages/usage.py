"""Usage: figures with the events that they follow from, billing periods, downloads, reservations and projects."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from control_plane.web.actions import by_scope
from control_plane.web.pages.project_actions import PERIOD, PROJECT_ACTIONS, limits_of
from control_plane.web.visits import Visit, both, nothing

_FILTERS: Final = ("period", "from", "to", "project", "sku", "label")
_MOST: Final = 500
_PERIODS: Final = 24
_ENTRIES: Final = 50
_OPEN_PERIOD: Final = "open"
"""Name of the current billing period in the API."""
_GROUPINGS: Final = {"project": "project", "sku": "SKU"}
_LABEL: Final = "label:"
"""Beginning of the grouping by a label; the name of the label follows."""
_FORMATS: Final = {"csv": "csv", "focus": "focus.csv"}


def _filters(visit: Visit) -> dict[str, str | None]:
    times = {name: visit.moment(name) for name in ("from", "to")}
    return {**{name: visit.query(name) for name in _FILTERS}, **times}


async def show(visit: Visit) -> Response:
    """Show the totals of a period or a range of time, by group, and the billing periods."""
    chosen, group = _filters(visit), _grouping(visit)
    found, periods, projects, skus = await both(
        visit.get("usage", group_by=group, **chosen),
        visit.get("usage", "periods", order="desc", limit=_PERIODS),
        visit.get("projects", limit=_MOST) if visit.allows("projects:read") else nothing(),
        visit.get("skus", limit=_MOST) if visit.allows("catalogue:read") else nothing(),
    )
    listed = [] if projects is None else projects["items"]
    budgets = [each for each in listed if each["budget"]]
    return visit.render(
        "usage.html",
        usage=found,
        group=group,
        groupings=_GROUPINGS,
        label=group.partition(_LABEL)[2],
        grouped_by=_GROUPINGS.get(group, group.replace(":", " ")),
        chosen=chosen,
        given={name: value for name, value in chosen.items() if value},
        periods=periods["items"],
        projects=listed,
        skus=[] if skus is None else skus["items"],
        budgets=budgets,
        spent=await _spent(visit, budgets[0]["budget"]["month"], found, chosen) if budgets else None,
        narrowed=[_narrowed(group, each["key"]) for each in found["groups"]],
        **_closing(visit),
    )


def _closing(visit: Visit) -> dict[str, Any]:
    """Return the action that closes the open period, and whether the caller may take it, for a page that offers it."""
    return {
        "closing": PERIOD.actions["close"],
        "may_close": by_scope(visit, "close", scope="usage:write")["close"],
    }


def _grouping(visit: Visit) -> str:
    """Return what the usage is grouped by, as the API names it; the form has the name of a label in a second field."""
    group = visit.query("group_by") or "project"
    return f"{_LABEL}{visit.query('group_label') or ''}" if group == "label" else group


async def _spent(
    visit: Visit, month: str, found: Mapping[str, Any], chosen: Mapping[str, str | None]
) -> Mapping[str, Any]:
    """Return the price of the usage of a month by project, and the time until which it counts. `found` is the usage
    that the page shows with the filters `chosen`.

    `spent` of the API counts until the time of its own request, so a project would have two different prices on the
    page. The returned prices count until the end of `found` if this is the present, otherwise until now.
    """
    is_until_now = chosen["to"] is None and chosen["period"] in (None, _OPEN_PERIOD)
    begin, end = f"{month}-01T00:00:00Z", found["end"] if is_until_now else None
    usage = await visit.get("usage", group_by="project", to=end, **{"from": begin})
    return {"end": usage["end"], "prices": {each["key"]: each["amount"]["price"] for each in usage["groups"]}}


def _narrowed(group: str, key: str | None) -> dict[str, str] | None:
    """Return the filter that selects a group; None for allocations without the label, which no filter selects."""
    if key is None:
        return None
    if group in ("project", "sku"):
        return {group: key}
    return {"label": f"{group.partition(':')[2]}={key}"}


async def show_entries(visit: Visit) -> Response:
    """List the entries of which a figure is the sum, each with its events."""
    chosen = _filters(visit)
    found, listed, unused = await both(
        visit.get("usage", **chosen),
        visit.get("usage", "entries", cursor=visit.query("cursor"), limit=_ENTRIES, **chosen),
        visit.get("usage", "unused-reservations", limit=_ENTRIES, **chosen),
    )
    return visit.render(
        "usage_entries.html",
        selected=_in_words(chosen),
        usage=found,
        entries=listed["items"],
        next_cursor=listed["next_cursor"],
        unused=unused["items"],
        given={name: value for name, value in chosen.items() if value},
    )


def _in_words(chosen: Mapping[str, str | None]) -> str:
    """Return the filters of a list of usage entries in words, such as `project vision, SKU c1.large`."""
    names = {"project": "project", "sku": "SKU", "label": "label", "period": "period"}
    found = [f"{name} {chosen[key]}" for key, name in names.items() if chosen[key]]
    return ", ".join(found) if chosen["project"] else ", ".join(("all projects", *found))


async def download(visit: Visit) -> Response:
    """Return the entries as a file: CSV, or FOCUS for a billing period."""
    form, chosen = visit.query("format") or "csv", _filters(visit)
    name = f"usage-{chosen['period']}" if (chosen["period"] or "").replace("-", "").isalnum() else "usage"
    file_name = f"{name if name.isascii() else 'usage'}.{_FORMATS.get(form, 'csv')}"
    return visit.download(file_name, "usage", "export", format=form, **chosen)


async def show_period(visit: Visit) -> Response:
    name = visit.request.path_params["period"]
    period, until_now = await both(
        visit.get("usage", "periods", name),
        visit.get("usage", period=name) if name == _OPEN_PERIOD else nothing(),
    )
    return visit.render("period.html", period=period, until_now=until_now, **_closing(visit))


async def show_reservations(visit: Visit) -> Response:
    listed, found = await both(
        visit.get("reservations", cursor=visit.query("cursor"), limit=100),
        visit.get("projects", limit=_MOST),
    )
    allowed = {each["id"]: each["allowed_actions"]["set_limits"] for each in found["items"]}
    reserved = {each["project"] for each in listed["items"]}
    return visit.render(
        "reservations.html",
        reservations=listed["items"],
        next_cursor=listed["next_cursor"],
        allowed={name: each for name, each in allowed.items() if name in reserved},
        projects=[name for name, each in allowed.items() if each["allowed"]],
        against=next((each for each in allowed.values() if not each["allowed"]), None),
    )


async def show_project(visit: Visit) -> Response:
    name = visit.request.path_params["project"]
    project, capabilities = await both(visit.get("projects", name, at=visit.at), visit.get())
    return visit.render(
        "project.html",
        project=project,
        most_waiting=capabilities["limits"]["waiting_requests"],
        limits=limits_of(project, visit.user["currency"]),
        actions={
            each: PROJECT_ACTIONS[each] for each in ("reserve", "limits", "describe", "archive", "erase")
        },
    )
