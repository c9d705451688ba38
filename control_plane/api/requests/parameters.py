"""Check for unknown query parameters: a request with parameters that its route does not define is refused, and the
response lists all of them.

If a misspelt filter were ignored, the response would contain everything; if a misspelt `at` were ignored, it would
contain the present state.
"""

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from control_plane.decisions.refusals import Malformed, Objection


async def known_parameters(request: Request) -> None:
    """Check that the route defines every query parameter of the request. Raises `Malformed`."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute), f"the route must be an APIRoute, not {type(route).__name__}"
    known = _names(route.dependant)
    if unknown := [name for name in request.query_params if name not in known]:
        offer = f"choose from {', '.join(sorted(known))}" if known else "this route has no query parameters"
        raise Malformed(
            *(
                Objection(
                    "unknown_parameter", f"unknown parameter {name[:64]!r}; {offer}", parameter=name[:64]
                )
                for name in unknown
            )
        )


def _names(dependant: Dependant) -> frozenset[str]:
    """Return the names of the query parameters of a route and of its dependencies."""
    own = frozenset(field.alias for field in dependant.query_params)
    return own.union(*(_names(further) for further in dependant.dependencies))
