"""Every route of the API authenticates its caller, except the few that must work without credentials."""

from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from control_plane.api import app
from control_plane.api.requests import access

AUTHENTICATING = {access.admin, access.node, access.shown}
OPEN = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/readyz/{check}"),
    ("POST", "/v1/agent/enroll"),
    ("POST", "/v1/agent/sessions"),
}
"""Health checks, and the two requests in which a node proves its identity by a signature."""


def called(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for each in dependant.dependencies:
        yield from called(each)


def routes() -> Iterator[APIRoute]:
    modules = [each for each in vars(app).values() if isinstance(getattr(each, "router", None), APIRouter)]
    for module in modules:
        yield from (each for each in module.router.routes if isinstance(each, APIRoute))


def test_every_api_route_except_the_listed_open_routes_authenticates_its_caller() -> None:
    unauthenticated = {
        (method, route.path)
        for route in routes()
        for method in route.methods or ()
        if not AUTHENTICATING & {*called(route.dependant)}
    }
    assert unauthenticated == OPEN
    assert len([*routes()]) > len(OPEN)
