"""`/v1/audit`: signed heads of the ledger, proofs, and the export for auditors (LED-7)."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Final

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.api.requests.access import AuthenticatedRoute, access
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, position_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import plane_of
from control_plane.audit import proofs
from control_plane.audit.export import compressed_export
from control_plane.audit.heads import Part, SignedHead, head_of
from control_plane.audit.stored_tree import head_of_size
from control_plane.database import reading
from control_plane.decisions.access import Scope
from control_plane.decisions.refusals import Conflict, Malformed, Objection
from control_plane.work.tables import head_sink
from events.ledger.connection import ledger_connection
from events.ledger.tables import tree_head

router = APIRouter(prefix="/v1/audit", tags=["audit"], responses=PROBLEMS, route_class=AuthenticatedRoute)
MEDIA_TYPE: Final = "application/zstd"
_LARGEST: Final = 2**63 - 1
_EXPORTED: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The export.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


class HeadView(BaseModel):
    """A signed head of the ledger's Merkle tree. `signed` is the head as a compact JWS; the other fields repeat it.

    `root` is the hash of the tree over the leaves of positions 1 to `size`. `state` has the digests of tables that do
    not follow from the events. `previous` is the SHA-256 of the signed text of the previous head, null for the first
    one.
    """

    number: int
    size: int
    root: str
    epoch: int
    sealed_at: datetime
    previous: str | None
    state: dict[Part, str]
    signed: str


class InclusionProofView(BaseModel):
    """The proof that the tree of `size` leaves includes the leaf of a position (RFC 6962 section 2.1.1).

    `leaf` is the leaf as it was sealed, and `hashes` is the path from it to the root, in hexadecimal digits. `head` is
    the first head of this size, null if there is none.
    """

    position: int
    size: int
    leaf: str
    hashes: list[str]
    head: HeadView | None


class ConsistencyProofView(BaseModel):
    """The proof that the tree of `first` leaves is a prefix of the tree of `second` leaves (RFC 6962 section 2.1.2)."""

    first: int
    second: int
    hashes: list[str]


class SinkView(BaseModel):
    """A place outside the database to which the sealer sends the signed heads.

    `number` is the newest head that it has stored, and `stored_at` is when; null if it has stored none. `error` is why
    it has stored none since `failing_since`; null if it stores heads.
    """

    name: str
    number: int | None
    stored_at: datetime | None
    failing_since: datetime | None
    error: str | None


class SinksView(BaseModel):
    """All sinks of the sealer, by name. `newest` is the number of the newest head; null if there is none."""

    newest: int | None
    sinks: list[SinkView]


Size = Annotated[
    int | None, Query(ge=1, le=_LARGEST, description="Size of the tree. Default: that of the newest head.")
]


@router.get("/heads", openapi_extra=access(Scope.AUDIT_READ))
async def list_heads(
    request: Request, *, cursor: Cursor = None, limit: Limit = 100, order: Order = "desc"
) -> Page[HeadView]:
    """List the signed heads, the newest first."""
    number, place = tree_head.c.number, position_of(cursor)
    query = sa.select(tree_head.c.signed).order_by(number.desc() if order == "desc" else number).limit(limit)
    if place is not None:
        query = query.where(number < place if order == "desc" else number > place)
    async with plane_of(request).engine.connect() as conn:
        found = [_view(head_of(text)) for text in (await conn.execute(query)).scalars()]
    following = str(found[-1].number) if len(found) == limit else None
    return Page(items=found, next_cursor=following)


@router.get("/sinks", openapi_extra=access(Scope.AUDIT_READ))
async def show_sinks(request: Request) -> SinksView:
    """Show which heads have left the database, and which sinks do not store them."""
    newest = sa.select(sa.func.max(tree_head.c.number))
    async with plane_of(request).engine.connect() as conn:
        found = await conn.execute(sa.select(head_sink).order_by(head_sink.c.name))
        sinks = [SinkView.model_validate(dict(each)) for each in found.mappings()]
        return SinksView(newest=await conn.scalar(newest), sinks=sinks)


@router.get("/proofs/{position}", openapi_extra=access(Scope.AUDIT_READ))
async def prove_inclusion(
    request: Request, position: Annotated[int, Path(ge=1, le=_LARGEST)], *, size: Size = None
) -> InclusionProofView:
    """Return the proof that the Merkle tree of `size` leaves includes a position. 409 if the position is not sealed
    yet.
    """
    async with reading(plane_of(request).engine) as reader:
        conn = await ledger_connection(reader)
        sealed = await proofs.sealed_size(conn)
        wanted = sealed if size is None else size
        _refuse_unsealed(max(position, wanted), sealed)
        if position > wanted:
            reason = (
                f"a tree of {wanted} positions does not include position {position}; choose a larger size"
            )
            raise Malformed(Objection("invalid_value", reason, parameter="size"))
        found = await proofs.inclusion(conn, position, wanted)
        head = await head_of_size(conn, wanted)
    return InclusionProofView(
        position=position,
        size=wanted,
        leaf=found.leaf.hex(),
        hashes=[each.hex() for each in found.hashes],
        head=None if head is None else _view(head),
    )


@router.get("/consistency", openapi_extra=access(Scope.AUDIT_READ))
async def prove_consistency(
    request: Request,
    *,
    first: Annotated[int, Query(ge=1, le=_LARGEST, description="Size of the first tree.")] = 1,
    second: Size = None,
) -> ConsistencyProofView:
    """Return the proof that the tree of the first size is a prefix of the tree of the second one. 409 if the second one
    is not sealed yet.
    """
    async with reading(plane_of(request).engine) as reader:
        conn = await ledger_connection(reader)
        sealed = await proofs.sealed_size(conn)
        wanted = sealed if second is None else second
        _refuse_unsealed(max(first, wanted), sealed)
        if first > wanted:
            reason = f"the first size {first} is larger than the second size {wanted}; exchange them"
            raise Malformed(Objection("range_reversed", reason, parameter="first"))
        found = await proofs.consistency(conn, first, wanted)
    return ConsistencyProofView(first=first, second=wanted, hashes=[each.hex() for each in found])


@router.get(
    "/export", response_class=StreamingResponse, responses=_EXPORTED, openapi_extra=access(Scope.AUDIT_READ)
)
async def export(request: Request) -> StreamingResponse:
    """Return the whole ledger for an offline verification, from one snapshot. The export is a file of lines that is
    compressed with Zstandard. Stored responses and credentials are not included. A truncated export lacks its last
    line.
    """
    return StreamingResponse(_exported(plane_of(request).engine), media_type=MEDIA_TYPE)


async def _exported(engine: AsyncEngine) -> AsyncIterator[bytes]:
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ")
        async with connection.begin():
            await connection.exec_driver_sql("set transaction read only")
            async for piece in compressed_export(await ledger_connection(connection)):
                yield piece


def _refuse_unsealed(position: int, sealed: int) -> None:
    if position > sealed:
        reason = (
            f"the ledger is sealed up to position {sealed}, so {position} has no proof yet; retry in a second"
        )
        raise Conflict(Objection("not_sealed", reason))


def _view(signed: SignedHead) -> HeadView:
    head = signed.head
    return HeadView(
        number=head.number,
        size=head.size,
        root=head.root,
        epoch=head.epoch,
        sealed_at=head.sealed_at,
        previous=head.previous,
        state=head.state,
        signed=signed.text,
    )
