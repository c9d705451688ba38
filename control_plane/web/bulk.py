"""Actions on several resources at once: a preview of the selection, and a result for each item.

Each item is the same request of the API as the action on one resource, with an idempotency key of its own. Items are
independent: one that is refused changes nothing, and does not stop the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from math import inf
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from control_plane.web.actions import (
    CONFIRM,
    Action,
    Names,
    Resource,
    View,
    commands_of,
    invalid,
    refuse_empty,
)
from control_plane.web.calls import Refusal
from control_plane.web.commands import Command
from control_plane.web.cookies import ROOT
from control_plane.web.visits import Form, Visit, problem

MOST_ITEMS: Final = 50
"""Items of one selection at most: those of one page of a list."""
ITEM: Final = "item"
LEFT_OUT: Final = "left_out"
"""Field with an item for which the preview did not offer the action."""


class Bulk(NamedTuple):
    """The actions on several resources of one kind. `names` returns the path parameters of the item with an id."""

    resource: Resource
    actions: Sequence[str]
    names: Callable[[str], Names]
    list_page: str
    """Path of the list, below the root of the console."""


class Item(NamedTuple):
    """A selected resource. `view` is None if the API does not return it; `reason` is why the action is not allowed."""

    id: str
    page: str
    view: View | None
    facts: View
    reason: View | None


class Result(NamedTuple):
    """What the action did to an item. `outcome`: done, refused by the API, or left out, because the preview did not
    offer it.
    """

    item: Item
    outcome: str
    reasons: Sequence[View] = ()


def preview(bulk: Bulk) -> Callable[[Visit], Awaitable[Response]]:
    """Return the page that shows for each selected item whether an action is allowed, with the form of the action."""

    async def show(visit: Visit) -> Response:
        name = _action_of(bulk, visit.query("action") or "")
        ids = _selected(visit.request.query_params.getlist(ITEM))
        return await _preview(visit, bulk, name, ids)

    return show


def execute(bulk: Bulk) -> Callable[[Visit], Awaitable[Response]]:
    """Return the handler that carries out an action on the items that the preview offered, and shows each result."""

    async def act(visit: Visit) -> Response:
        form = await visit.form()
        name = _action_of(bulk, form.text("action"))
        action = bulk.resource.actions[name]
        ids, left_out = _selected(form.every(ITEM)), form.every(LEFT_OUT)[:MOST_ITEMS]
        try:
            refuse_empty(action, form)
            if action.dangerous and form.text(CONFIRM) != str(len(ids)):
                raise invalid(f"the action is not confirmed: enter {len(ids)}", "not_confirmed")
            call = action.call(form)
        except Refusal as refusal:
            return await _preview(visit, bulk, name, [*ids, *left_out], (form, refusal))
        results = []
        for each in ids:
            path = (*bulk.resource.path(bulk.names(each)), *call.path)
            key = f"{form.text('idempotency_key')}:{each}"
            try:
                await visit.send(call.method, *path, body=call.body, idempotency_key=key)
            except Refusal as refusal:
                results.append((each, "refused", refusal.problem["reasons"]))
            else:
                results.append((each, "done", ()))
        results += [(each, "left_out", ()) for each in left_out]
        items = {each.id: each for each in await _items(visit, bulk, action, [found[0] for found in results])}
        return visit.render(
            "bulk_results.html",
            action=action,
            results=[Result(items[each], outcome, reasons) for each, outcome, reasons in results],
            kind=bulk.resource.kind,
            back=f"{ROOT}{bulk.list_page}",
        )

    return act


async def _preview(
    visit: Visit,
    bulk: Bulk,
    name: str,
    ids: Sequence[str],
    refused: tuple[Form, Refusal] | None = None,
) -> Response:
    """Return the page with the form of an action, and with the refusal of the form that was sent before."""
    values, refusal = ({}, None) if refused is None else (refused[0].values(), refused[1])
    action = bulk.resource.actions[name]
    items = await _items(visit, bulk, action, ids)
    allowed = [each for each in items if each.reason is None]
    first = {**_first_values(action, allowed), **values}
    return visit.render(
        "bulk.html",
        HTTPStatus.OK if refusal is None else refusal.status,
        action=action,
        name=name,
        items=items,
        allowed=allowed,
        values={each.name: first[each.name] for each in action.fields},
        different=_different(action, allowed),
        kind=bulk.resource.kind,
        refused=None if refusal is None else refusal.problem,
        commands=_commands(visit, bulk, action, [each.id for each in allowed], first),
        back=f"{ROOT}{bulk.list_page}",
    )


def _first_values(action: Action, items: Sequence[Item]) -> View:
    """Return the initial values of the fields of the form. A field is empty if the states of the items lead to
    different values: the value of one item is not right for all, so the user must choose.
    """
    offered = _offered_values(action, items)
    return {name: values[0] if len(values) == 1 else "" for name, values in offered.items()}


def _offered_values(action: Action, items: Sequence[Item]) -> dict[str, list[str]]:
    """Return the different values that the states of the items lead to for each field, the smallest number first."""
    found = [action.first_values(each.view) for each in items if each.view is not None]
    return {
        field.name: sorted({each[field.name] for each in found}, key=_number) or [field.value]
        for field in action.fields
    }


def _number(text: str) -> float:
    """Return the number of a field; infinite for a text that is not a number."""
    try:
        return float(text)
    except ValueError:
        return inf


def _different(action: Action, items: Sequence[Item]) -> list[tuple[str, str, str]]:
    """Return the fields for which the states of the items lead to different values: the label of each, its smallest and
    its largest value.
    """
    offered = _offered_values(action, items)
    return [
        (each.label, offered[each.name][0], offered[each.name][-1])
        for each in action.fields
        if len(offered[each.name]) > 1
    ]


def _commands(visit: Visit, bulk: Bulk, action: Action, ids: Sequence[str], values: View) -> list[Command]:
    form = Form([*values.items()])
    try:
        return [commands_of(visit, bulk.resource, bulk.names(each), action, form) for each in ids]
    except Refusal:
        # A value that the form refuses has no command either.
        return []


async def _items(visit: Visit, bulk: Bulk, action: Action, ids: Sequence[str]) -> list[Item]:
    async def load(each: str) -> Item:
        names = bulk.names(each)
        page = f"{ROOT}{bulk.resource.page(names)}"
        try:
            view = await bulk.resource.view(visit, names, action)
        except Refusal as refusal:
            if refusal.status == HTTPStatus.FORBIDDEN:
                raise  # the caller may not read any item
            return Item(each, page, None, {}, refusal.problem["reasons"][0])
        allowed = view["allowed_actions"][action.allowed_by]
        reason = None if allowed["allowed"] else {"message": allowed["reason"], "code": allowed["code"]}
        return Item(each, page, view, await bulk.resource.facts_for(visit, action, view), reason)

    return list(await asyncio.gather(*map(load, ids)))


def _selected(ids: Sequence[str]) -> list[str]:
    """Return the ids of a selection, each once. Raises `Refusal` if it is empty or too large."""
    found = list(dict.fromkeys(filter(None, ids)))
    if not found:
        hint = "Go back to the list and choose at least one row."
        raise problem(HTTPStatus.UNPROCESSABLE_ENTITY, "nothing_selected", "no row was chosen", hint)
    if len(found) > MOST_ITEMS:
        message = f"{len(found)} rows were chosen; the console changes at most {MOST_ITEMS} at once"
        hint = "Choose fewer rows, or use the command line."
        raise problem(HTTPStatus.UNPROCESSABLE_ENTITY, "too_many", message, hint)
    return found


def _action_of(bulk: Bulk, name: str) -> str:
    """Return the name of an action. Raises `Refusal` if it is not offered for several items."""
    if name not in bulk.actions:
        offered = ", ".join(bulk.actions)
        message = f"there is no action {name[:64]!r} on several items; choose one of {offered}"
        raise problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_value", message, "Go back to the list.")
    return name


def offered(bulk: Bulk) -> dict[str, Any]:
    """Return the actions that a list offers for its chosen rows, by name."""
    return {name: bulk.resource.actions[name] for name in bulk.actions}
