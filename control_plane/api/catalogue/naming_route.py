"""Objections to the entries of the catalogue that a malformed request names.

A command checks these names in its transaction, but a malformed body never reaches a command. The route adds these
objections to the errors of the body, so that the caller gets every reason at once (ALC-5).
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, get_args

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

from control_plane.api.requests.access import AuthenticatedRoute
from control_plane.api.requests.state import plane_of
from control_plane.decisions.catalogue import against_entries
from control_plane.decisions.refusals import class_of
from events.values import EntryKind, InvalidValue, NetworkMode, app_profile_name, image_name, sku_name
from read_models import catalogue

_NAMED: Final[Mapping[EntryKind, Callable[[str], str]]] = {
    "sku": sku_name,
    "image": image_name,
    "app_profile": app_profile_name,
}
_MODES: Final[tuple[NetworkMode, ...]] = get_args(NetworkMode)


class NamingRoute(AuthenticatedRoute):
    """Route with a body that names entries of the catalogue in the fields `sku`, `image` and `app_profile`."""

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
    if not names:
        return
    async with plane_of(request).engine.connect() as conn:
        found = await catalogue.find(conn, names.items())
    # The value may be of any type of JSON, of which some are not hashable.
    mode = next((each for each in _MODES if each == body.get("network_mode")), None)
    for objection in against_entries(names, mode, found):
        field = str(objection.field).removeprefix("/")
        yield {
            "type": objection.code,
            "loc": ("body", field),
            "msg": objection.message,
            "input": body.get(field),
            "ctx": {"refusal": class_of([objection]).__name__},
        }


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
