"""No query parameter is passed over: one that a route does not know is refused, and all of them are named at once.

A misspelt filter would otherwise answer with everything, and a misspelt `at` with the present.
"""

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from control_plane.decisions.refusals import Malformed, Objection


async def known_parameters(request: Request) -> None:
    """Raises `Malformed`."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute), "the application has no other kind of route with dependencies"
    known = _names(route.dependant)
    if unknown := [name for name in request.query_params if name not in known]:
        offer = f"it knows {', '.join(sorted(known))}" if known else "it has none"
        raise Malformed(
            *(
                Objection(
                    "unknown_parameter", f"unknown parameter {name[:64]!r}; {offer}", parameter=name[:64]
                )
                for name in unknown
            )
        )


def _names(dependant: Dependant) -> frozenset[str]:
    """Of every query parameter of a route and of what it depends on."""
    own = frozenset(field.alias for field in dependant.query_params)
    return own.union(*(_names(further) for further in dependant.dependencies))
