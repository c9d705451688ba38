"""Who is calling. Callers and admins come with an API key, nodes with `<node_id>:<credential>`; both as Bearer.

Only hashes are stored, and they are compared in constant time or looked up in the database. Every route names the role
that it wants; a route without one does not pass the tests.
"""

from hashlib import sha256
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from control_plane.api.state import plane_of
from control_plane.database import reading
from control_plane.decisions.refusals import Forbidden, Objection, Unauthorised
from control_plane.sessions import Shown, refuse_stranger
from events.values import InvalidValue, NodeId, node_id
from read_models import keys
from read_models.keys import Principal

_bearer: Final = HTTPBearer(auto_error=False, description="An API key, or a node's id and credential.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def admin(request: Request, credentials: Credentials) -> Principal:
    """The admin who calls. Raises `Unauthorised` or `Forbidden`."""
    secret = _secret(credentials)
    async with reading(plane_of(request).engine) as conn:
        principal = await keys.principal(conn, _digest(secret))
    if principal is None:
        raise Unauthorised(Objection("unknown_key", "this API key is not known"))
    if principal.role != "admin":
        raise Forbidden(
            Objection("role_missing", f"this needs the role admin, and the key has {principal.role}")
        )
    return principal


async def shown(credentials: Credentials) -> Shown:
    """What the caller shows to be taken for a node, not looked at yet. Raises `Unauthorised` for what no node shows."""
    raw, _, credential = _secret(credentials).partition(":")
    try:
        name = node_id(raw)
    except InvalidValue:
        raise Unauthorised(Objection("unknown_node", "no node is known by these credentials")) from None
    return Shown(name, _digest(credential))


async def node(request: Request, shows: Annotated[Shown, Depends(shown)]) -> NodeId:
    """The node that calls, by its newest session. Raises `Unauthorised`."""
    async with reading(plane_of(request).engine) as conn:
        await refuse_stranger(conn, shows)
    return shows.node_id


def _secret(credentials: HTTPAuthorizationCredentials | None) -> str:
    if credentials is None:
        why = "send 'Authorization: Bearer <API key>'"
        raise Unauthorised(Objection("no_credentials", why))
    return credentials.credentials


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


Admin = Annotated[Principal, Depends(admin)]
CallingNode = Annotated[NodeId, Depends(node)]
ShownByNode = Annotated[Shown, Depends(shown)]
"""For a route that sees to it by itself that the caller is who he says."""
