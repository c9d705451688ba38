"""Lists of projects, SKUs and images, and the pages of one SKU and one image."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from control_plane.web.actions import Action, View, by_scope
from control_plane.web.pages.catalogue_actions import (
    IMAGE,
    IMAGES,
    NEW_IMAGE,
    NEW_SKU,
    SKU,
    SKUS,
    Facts,
    Kind,
    with_effective_actions,
)
from control_plane.web.pages.project_actions import CREATING
from control_plane.web.visits import Visit, both, nothing

_VERSIONS: Final = 100
"""Number of the newest versions that the page of an entry lists, and of its newest events that it reads."""


class Change(NamedTuple):
    """A field with another value than in the previous version: its label, and both values in words."""

    label: str
    before: Any
    after: Any


class Step(NamedTuple):
    """A version of an entry, or the retirement of the entry, which has no version. `event` is None if the page has not
    read it. `changes` is None for version 1, and if the page has not read the previous version.
    """

    version: View | None
    event: View | None
    changes: Sequence[Change] | None = None


async def show_projects(visit: Visit) -> Response:
    listed = await visit.get("projects", cursor=visit.query("cursor"))
    return visit.render(
        "projects.html",
        projects=listed["items"],
        next_cursor=listed["next_cursor"],
        creating=CREATING,
        allowed=by_scope(visit, *CREATING, scope="projects:write"),
    )


async def show_skus(visit: Visit) -> Response:
    return await _list(visit, SKUS, NEW_SKU.actions)


async def show_images(visit: Visit) -> Response:
    return await _list(visit, IMAGES, NEW_IMAGE.actions)


async def _list(visit: Visit, kind: Kind, creating: Mapping[str, Action]) -> Response:
    """Return the list of the entries of a kind, at the time of the page, with the actions that create an entry."""
    listed = await visit.get(kind.path, cursor=visit.query("cursor"), at=visit.at)
    return visit.render(
        f"{kind.path}.html",
        entries=listed["items"],
        next_cursor=listed["next_cursor"],
        creating=creating,
        allowed=by_scope(visit, *creating, scope="catalogue:write"),
    )


async def show_sku(visit: Visit) -> Response:
    return await _show(visit, SKUS, SKU.actions)


async def show_image(visit: Visit) -> Response:
    return await _show(visit, IMAGES, IMAGE.actions)


async def _show(visit: Visit, kind: Kind, actions: Mapping[str, Action]) -> Response:
    """Return the page of one entry, at the time of the page. The API lists only the present versions of an entry, so
    those that were published later are removed.
    """
    name, at = visit.request.path_params[kind.name], visit.at
    entry, listed, events = await both(
        visit.get(kind.path, name, at=at),
        visit.get(kind.path, name, "versions", order="desc", limit=_VERSIONS),
        visit.get("events", stream=f"{kind.name}-{name}", order="desc", limit=_VERSIONS, to=at)
        if visit.allows("events:read")
        else nothing(),
    )
    versions = [each for each in listed["items"] if each["version"] < entry["version"]]
    facts = {each["version"]: kind.facts(each, visit.user["currency"]) for each in (entry, *versions)}
    return visit.render(
        "entry.html",
        kind=kind,
        entry=with_effective_actions(kind, entry),
        facts=facts[entry["version"]],
        steps=[*_steps([entry, *versions], facts, events["items"] if events else ())],
        has_events=bool(events and events["items"]),
        has_more=listed["next_cursor"] is not None,
        actions=actions,
    )


def _steps(versions: Sequence[View], facts: Mapping[int, Facts], events: Sequence[View]) -> Iterator[Step]:
    """Yield the versions of an entry and its retirements, newest first."""
    left = {each["version"]: each for each in versions}
    for event in events:
        number = event["data"].get("version")
        if number is None:
            yield Step(None, event)
        elif number in left:
            yield Step(left.pop(number), event, _changes(facts, number))
    for number, each in left.items():
        yield Step(each, None, _changes(facts, number))


def _changes(facts: Mapping[int, Facts], version: int) -> Sequence[Change] | None:
    before = facts.get(version - 1)
    if before is None:
        return None
    return [
        Change(label, before[label], after)
        for label, after in facts[version].items()
        if before[label] != after
    ]
