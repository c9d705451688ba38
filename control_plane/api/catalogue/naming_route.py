"""Objections to the entries of the catalogue that a malformed request names.

A command checks these names in its transaction, but a malformed body never reaches a command. The route adds these
objections to the errors of the body, so that the caller gets every reason at once (ALC-5).
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, get_args

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

from control_plane.api.requests.access import AuthenticatedRoute
from control_plane.api.requests.bodies import MOST_ALTERNATIVES
from control_plane.api.requests.state import plane_of
from control_plane.decisions.catalogue import against_entries
from control_plane.decisions.refusals import Objection, class_of
from events.values import EntryKind, InvalidValue, NetworkMode, app_profile_name, image_name, sku_name
from read_models import catalogue

_NAMED: Final[Mapping[EntryKind, Callable[[str], str]]] = {
    "sku": sku_name,
    "image": image_name,
    "app_profile": app_profile_name,
}
_OTHERS: Final = "alternative_skus"
_MODES: Final[tuple[NetworkMode, ...]] = get_args(NetworkMode)


class NamingRoute(AuthenticatedRoute):
    """Route with a body that names entries of the catalogue in the fields `sku`, `alternative_skus`, `image` and
    `app_profile`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def complete(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as malformed:
                further = [error async for error in _errors(request, malformed.body)]
                raise RequestValidationError([*malformed.errors(), *further], body=malformed.body) from None

        return complete


async def _errors(request: Request, body: Any) -> AsyncIterator[dict[str, Any]]:
    """Yield the objections to the entries that a malformed body names, in the form of Pydantic's errors."""
    names = dict(_names(body))
    choices: list[tuple[tuple[str | int, ...], dict[EntryKind, str]]] = [(("sku",), names)]
    choices += [((_OTHERS, index), {**names, "sku": name}) for index, name in _alternatives(body)]
    # The value may be of any type of JSON, of which some are not hashable.
    given = body.get("network_mode") if isinstance(body, dict) else None
    mode = next((each for each in _MODES if each == given), None)
    reported = set[Objection]()
    async with plane_of(request).engine.connect() as conn:
        for location, chosen in choices:
            found = await catalogue.find(conn, chosen.items()) if chosen else {}
            for objection in against_entries(chosen, mode, found):
                if objection in reported:
                    continue
                reported.add(objection)
                field = str(objection.field).removeprefix("/")
                of_sku = field == "sku"
                yield _error(
                    objection, location if of_sku else (field,), chosen["sku"] if of_sku else body.get(field)
                )


def _error(objection: Objection, location: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """Return an objection in the form of an error of Pydantic for the value at a location in the body."""
    return {
        "type": objection.code,
        "loc": ("body", *location),
        "msg": objection.message,
        "input": value,
        "ctx": {"refusal": class_of([objection]).__name__},
    }


def _alternatives(body: Any) -> Iterator[tuple[int, str]]:
    """Yield index and name of each alternative SKU that a body names, like `_names`."""
    named = body.get(_OTHERS) if isinstance(body, dict) else None
    for index, name in enumerate(named[:MOST_ALTERNATIVES] if isinstance(named, list) else ()):
        try:
            if isinstance(name, str):
                yield index, sku_name(name)
        except InvalidValue:
            continue


def _names(body: Any) -> Iterator[tuple[EntryKind, str]]:
    """Yield kind and name of each entry that a body names. Invalid names are omitted: the schema reports them."""
    if not isinstance(body, dict):
        return
    for kind, named in _NAMED.items():
        try:
            if isinstance(name := body.get(kind), str):
                yield kind, named(name)
        except InvalidValue:
            continue
