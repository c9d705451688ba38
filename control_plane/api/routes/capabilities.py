"""`GET /v1`: version, routes, features and limits of the control plane, for clients that support several releases."""

from collections.abc import Collection, Mapping
from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel

from control_plane.api.requests.access import EVERYONE, AuthenticatedRoute
from control_plane.api.requests.bodies import MAX_KEY_SECONDS, MAX_LEASE_SECONDS
from control_plane.api.requests.body_limit import MOST_BYTES
from control_plane.api.requests.pages import MAX_LIMIT
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import MAX_KEY, plane_of
from control_plane.version import release
from events.values import MAX_SLOTS

router = APIRouter(tags=["capabilities"], responses=PROBLEMS, route_class=AuthenticatedRoute)
FEATURES: Final = (
    "dry-run",
    "etags",
    "events-watch",
    "idempotency-keys",
    "problem-pages",
    "sessions",
    "time-travel",
)
"""Names of the API features in docs/api.md that this release supports. A name is never reused with another meaning."""


class GroupView(BaseModel):
    """A group of routes, each with its method and path."""

    name: str
    routes: list[str]


class LimitsView(BaseModel):
    """Limits of requests. `body_bytes` is the maximum size of the body of a caller's request. A `key_lifetime_seconds`
    of null means that an API key may be issued without expiry. `session_lifetime_seconds` and `session_idle_seconds`
    concern the sessions of callers. `credential_use_seconds` is the longest time after which the last use of a key or
    session is shown. `waiting_requests` applies to projects without a limit of their own.
    """

    body_bytes: int
    page_items: int
    idempotency_key_characters: int
    slots_per_allocation: int
    lease_seconds: int
    key_lifetime_seconds: int | None
    session_lifetime_seconds: int
    session_idle_seconds: int
    credential_use_seconds: float
    waiting_requests: int


class LoginView(BaseModel):
    """An identity provider with which users log in, by the device authorization grant (RFC 8628)."""

    name: str
    issuer: str
    """URL of the provider; its metadata is at `/.well-known/openid-configuration` below."""
    client_id: str
    audience: str
    """Audience that a token must have."""
    scope: str
    """Scopes to request, separated by spaces."""


class CapabilitiesView(BaseModel):
    """Release, groups of routes, features and limits of the control plane, and how users log in."""

    version: str
    groups: list[GroupView]
    features: list[str]
    limits: LimitsView
    logins: list[LoginView]
    documentation: str


@router.get("/v1", openapi_extra=EVERYONE)
async def capabilities(request: Request) -> CapabilitiesView:
    """Return the version, the groups of routes, the features and the limits of this control plane. Users log in with
    the identity providers in `logins`.
    """
    settings = plane_of(request).settings
    most = settings.max_key_lifetime
    return CapabilitiesView(
        version=release(),
        groups=_groups(request),
        features=list(FEATURES),
        limits=LimitsView(
            body_bytes=MOST_BYTES,
            page_items=MAX_LIMIT,
            idempotency_key_characters=MAX_KEY,
            slots_per_allocation=MAX_SLOTS,
            lease_seconds=MAX_LEASE_SECONDS,
            key_lifetime_seconds=None if most is None else min(int(most.total_seconds()), MAX_KEY_SECONDS),
            session_lifetime_seconds=int(settings.max_session_lifetime.total_seconds()),
            session_idle_seconds=settings.session_idle_seconds,
            credential_use_seconds=settings.credential_use_seconds,
            waiting_requests=settings.waiting_requests,
        ),
        logins=[
            LoginView(
                name=each.name,
                issuer=each.issuer,
                client_id=each.client_id,
                audience=each.audience,
                scope=each.login_scope,
            )
            for each in settings.oidc
            if each.client_id is not None
        ],
        documentation="/docs",
    )


def _groups(request: Request) -> list[GroupView]:
    groups: Mapping[str, Collection[str]] = request.app.state.route_groups
    return [GroupView(name=name, routes=sorted(routes)) for name, routes in sorted(groups.items())]
