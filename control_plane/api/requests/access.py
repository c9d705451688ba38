"""Authentication of callers. Admins send an API key, nodes send `<node_id>:<credential>`; both as a Bearer token.

Only hashes of secrets are stored; they are compared in constant time or looked up in the database. Every route names
the role that it requires; a test fails for a route without one.
"""

from hashlib import sha256
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from control_plane.api.requests.state import plane_of
from control_plane.database import reading
from control_plane.decisions.refusals import Forbidden, Objection, Unauthorised
from control_plane.identity.sessions import PresentedCredential, refuse_unknown_node
from events.values import InvalidValue, NodeId, node_id
from read_models import keys
from read_models.keys import Principal

_bearer: Final = HTTPBearer(auto_error=False, description="An API key, or a node's id and credential.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def admin(request: Request, credentials: Credentials) -> Principal:
    """Return the calling admin. Raises `Unauthorised` or `Forbidden`."""
    secret = _secret(credentials)
    async with reading(plane_of(request).engine) as conn:
        principal = await keys.principal(conn, _digest(secret))
    if principal is None:
        raise Unauthorised(
            Objection("unknown_key", "unknown API key; check the key in the Authorization header")
        )
    if principal.role != "admin":
        raise Forbidden(
            Objection(
                "role_missing",
                f"this request requires the role admin, but the API key has the role {principal.role}",
            )
        )
    return principal


async def shown(credentials: Credentials) -> PresentedCredential:
    """Return the credentials of a calling node without verifying them. Raises `Unauthorised` if they are malformed."""
    raw, _, credential = _secret(credentials).partition(":")
    try:
        name = node_id(raw)
    except InvalidValue:
        raise Unauthorised(
            Objection("unknown_node", "the credentials are not of the form '<node id>:<credential>'")
        ) from None
    return PresentedCredential(name, _digest(credential))


async def node(request: Request, shows: Annotated[PresentedCredential, Depends(shown)]) -> NodeId:
    """Return the calling node, authenticated by the credential of its newest session. Raises `Unauthorised`."""
    async with reading(plane_of(request).engine) as conn:
        await refuse_unknown_node(conn, shows)
    return shows.node_id


def _secret(credentials: HTTPAuthorizationCredentials | None) -> str:
    if credentials is None:
        reason = "send 'Authorization: Bearer <API key>'"
        raise Unauthorised(Objection("no_credentials", reason))
    return credentials.credentials


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


Admin = Annotated[Principal, Depends(admin)]
CallingNode = Annotated[NodeId, Depends(node)]
ShownByNode = Annotated[PresentedCredential, Depends(shown)]
"""Credentials of a calling node, for a route that verifies them itself."""
