"""The route that creates allocations, without the part of FastAPI's work that a well-formed request does not need.

For each request, FastAPI resolves every parameter of a route's function separately. For the creation of an allocation,
this took more processor time than the authentication and the command together. So a request that has a valid body and
no query parameters is checked here, with the same result, and passed to the route's function directly. FastAPI handles
every other request, so that refusals are the same as those of other routes.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response

from control_plane.api.catalogue.naming_route import NamingRoute
from control_plane.api.requests.access import caller_of
from control_plane.api.requests.bodies import CreateAllocation
from control_plane.api.requests.recording import recorded
from control_plane.api.requests.request_checks import is_storable


class CreationRoute(NamingRoute):
    """Route of a function with the arguments `request`, `principal` and a body of the type `CreateAllocation`.
    Everything else that the function takes are query parameters with default values.
    """

    def handler_after_authentication(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        complete = super().handler_after_authentication()

        async def direct(request: Request) -> Response:
            body = await _valid_body(request)
            if body is None:
                return await complete(request)
            await recorded(request)
            response: Response = await self.endpoint(request, caller_of(request), body)
            return response

        return direct


async def _valid_body(request: Request) -> CreateAllocation | None:
    """Return the body of a request without a query string that has the content type `application/json` and a valid
    body; None for every other request, which FastAPI must handle.
    """
    if request.scope["query_string"] or request.headers.get("content-type") != "application/json":
        return None
    try:
        given = await request.json()
        body = CreateAllocation.model_validate(given)
    except (ValueError, RecursionError):
        return None
    return body if is_storable(given) else None
