"""`POST /v1/agent/consistency`: a node checks that a new head of the ledger continues the one that it holds."""

from fastapi import APIRouter, Request

from control_plane.api.requests.access import NODES, AuthenticatedRoute, CallingNode
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.audit import proofs
from control_plane.audit.stored_tree import TreeDamaged
from control_plane.database import reading
from control_plane.decisions.refusals import Conflict, Objection
from events.ledger.connection import ledger_connection
from tasks.agent_api import HeadsConsistent, HeadSizes

router = APIRouter(prefix="/v1/agent", tags=["agent"], responses=PROBLEMS, route_class=AuthenticatedRoute)


@router.post("/consistency", openapi_extra=NODES)
async def prove_heads_consistent(request: Request, node: CallingNode, body: HeadSizes) -> HeadsConsistent:
    """Return the proof that the ledger's tree of the first size is a prefix of that of the second size (RFC 6962
    section 2.1.2). 409 if the ledger is not sealed up to the second size, or the stored tree is damaged: a node that
    holds a signed head of that size has then found that the history was changed.
    """
    async with reading(plane_of(request).engine) as reader:
        conn = await ledger_connection(reader)
        sealed = await proofs.sealed_size(conn)
        if body.second > sealed:
            reason = (
                f"node {node} has a signed head of {body.second} positions, but the ledger is sealed up to position"
                f" {sealed} only"
            )
            raise Conflict(Objection("not_sealed", reason))
        try:
            hashes = await proofs.consistency(conn, body.first, body.second)
        except TreeDamaged as damaged:
            raise Conflict(Objection("not_sealed", str(damaged))) from None
    return HeadsConsistent(hashes=tuple(each.hex() for each in hashes))
