"""`/v1/skus`, `/v1/images`, `/v1/app-profiles`: the catalogue. The three kinds of entries have the same routes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.api.catalogue.bodies import (
    CreateAppProfile,
    CreateImage,
    CreateSku,
    PublishAppProfile,
    PublishImage,
    PublishSku,
    RetireEntry,
)
from control_plane.api.requests.access import AuthenticatedRoute, Caller, access, caller_of
from control_plane.api.requests.as_of import At, set_headers, travel_of
from control_plane.api.requests.commands import DryRun, dry, execute, try_out
from control_plane.api.requests.conditional import IF_MATCH, TAGGED, set_version
from control_plane.api.requests.pages import Cursor, Limit, Order, Page, invalid_cursor, numbered, page_of
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.requests.state import origin_of, plane_of
from control_plane.api.views.entry_views import VIEWS, EntryView, entry_view
from control_plane.commands.catalogue import create_entry, publish_version, retire_entry
from control_plane.decisions.access import Scope
from control_plane.decisions.catalogue import WORDS, unknown_entry
from control_plane.decisions.refusals import Malformed, Objection, UnknownName
from control_plane.handle import Command
from control_plane.time_travel.rows import row_of, rows_at, streams_up_to
from events.entries import Entry, EntryPublished
from events.ledger.connection import ledger_connection
from events.values import (
    EntryKind,
    InvalidValue,
    Position,
    app_profile_name,
    image_name,
    sku_name,
    stream_of_entry,
)
from read_models import catalogue
from read_models.inline import CATALOGUE

JSON: Final = "application/json"
_END: Final = Position(2**63 - 1)
State = Annotated[Literal["offered", "retired"] | None, Query(description="Only entries in this state.")]
Version = Annotated[
    int | None, Query(ge=1, le=2**31 - 1, description="Version to return. Default: the newest.")
]


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of entries: the last part of its path, its request bodies, and the function that validates its names."""

    name: EntryKind
    path: str
    create: type[CreateSku | CreateImage | CreateAppProfile]
    publish: type[PublishSku | PublishImage | PublishAppProfile]
    named: Callable[[str], str]

    @property
    def word(self) -> str:
        return WORDS[self.name]

    @property
    def a_word(self) -> str:
        return f"an {self.word}" if self.word[0] in "ai" else f"a {self.word}"

    @property
    def view(self) -> type[EntryView]:
        return VIEWS[self.name]

    @property
    def page(self) -> type[BaseModel]:
        found = Page.__class_getitem__(self.view)
        assert isinstance(found, type)
        return found

    @property
    def parameter(self) -> Any:
        """The path parameter for the name of an entry. The parameter is named after the kind of the entry, such as
        `sku`.
        """
        return Path(alias=self.name, max_length=63)

    @property
    def in_path(self) -> str:
        """The placeholder for the name of an entry in the path of a route, such as `{sku}`."""
        return f"{{{self.name}}}"

    def named_in_path(self, raw: str) -> str:
        """Return the name of an entry in the path of a request. Raises `UnknownName` if the name is not valid."""
        try:
            return self.named(raw)
        except InvalidValue:
            raise UnknownName(unknown_entry(self.name, raw)) from None

    def named_in_cursor(self, raw: str) -> str:
        try:
            return self.named(raw)
        except InvalidValue:
            raise invalid_cursor(raw) from None


def _routes(kind: _Kind) -> APIRouter:
    """Return the routes of one kind of entries."""
    router = APIRouter(
        prefix=f"/v1/{kind.path}", tags=["catalogue"], responses=PROBLEMS, route_class=AuthenticatedRoute
    )
    _add_creation(router, kind)
    _add_list(router, kind)
    _add_view(router, kind)
    _add_versions(router, kind)
    _add_changes(router, kind)
    return router


def _add_creation(router: APIRouter, kind: _Kind) -> None:
    @router.post(
        "",
        status_code=201,
        response_model=kind.view,
        responses=dry(kind.view),
        description=f"Create {kind.a_word}: publish its version 1, which is offered from now on.",
        openapi_extra=access(Scope.CATALOGUE_WRITE),
    )
    async def create(
        request: Request,
        principal: Caller,
        body: kind.create,  # type: ignore[name-defined]  # FastAPI reads the class of this kind of entries
        *,
        dry_run: DryRun = False,
    ) -> Response:
        def render(fact: EntryPublished) -> str:
            made = Entry(kind.name, fact.name, 1, fact.version, fact.content, None)
            return entry_view(made, principal).model_dump_json()

        origin = origin_of(request, principal)
        command = create_entry(kind.name, body.name, body.content, origin, render)
        if dry_run:
            return await try_out(request, command)
        answer = await execute(request, command)
        set_version(request, 1)
        return Response(answer, 201, {"Location": f"/v1/{kind.path}/{body.name}"}, JSON)


def _add_list(router: APIRouter, kind: _Kind) -> None:
    @router.get(
        "",
        response_model=kind.page,
        description=f"List every {kind.word} by name, each with its newest version. In views of the past, a page"
        " omits entries that were created later, so that it may have fewer items than `limit`.",
        openapi_extra=access(Scope.CATALOGUE_READ),
    )
    async def list_entries(
        request: Request,
        response: Response,
        principal: Caller,
        *,
        state: State = None,
        at: At = None,
        cursor: Cursor = None,
        limit: Limit = 100,
        order: Order = "asc",
    ) -> Page[EntryView]:
        retired = None if state is None else state == "retired"
        after = None if cursor is None else kind.named_in_cursor(cursor)

        async def page(conn: AsyncConnection) -> list[Entry]:
            descending = order == "desc"
            return await catalogue.page(
                conn, kind.name, after=after, limit=limit, descending=descending, retired=retired
            )

        if at is None:
            async with plane_of(request).engine.connect() as conn:
                found = await page(conn)
            return _page([entry_view(each, principal) for each in found], found, limit)
        if state is not None:
            reason = "a list of the past cannot be filtered by state; leave out 'state' or 'at'"
            raise Malformed(Objection("invalid_value", reason, parameter="state"))
        async with travel_of(request).to(at) as (conn, [place]):
            found = await page(conn)
            then = await _entries_then(conn, kind.name, [each.name for each in found], place.position)
        set_headers(response, place)
        return _page([entry_view(each) for each in then], found, limit)


def _add_view(router: APIRouter, kind: _Kind) -> None:
    @router.get(
        f"/{kind.in_path}",
        response_model=kind.view,
        description=f"Return {kind.a_word}: its newest version, or the requested one; at present, or at an earlier time.",
        openapi_extra=access(Scope.CATALOGUE_READ),
        **TAGGED,
    )
    async def show(
        request: Request,
        response: Response,
        entry: Annotated[str, kind.parameter],
        *,
        version: Version = None,
        at: At = None,
    ) -> EntryView:
        name = kind.named_in_path(entry)
        if at is None and version is None:
            return await _shown(request, kind, name)
        if at is None:
            async with plane_of(request).engine.connect() as conn:
                versions = await _versions(conn, kind.name, name, _END)
        else:
            async with travel_of(request).to(at) as (conn, [place]):
                versions = await _versions(conn, kind.name, name, place.position)
            set_headers(response, place)
        if not versions:
            raise UnknownName(unknown_entry(kind.name, name))
        newest = versions[-1]
        wanted = newest if version is None else next((v for v in versions if v.version == version), None)
        if wanted is None:
            reason = (
                f"the {kind.word} {name} has no version {version}; its newest version is {newest.version}"
            )
            raise UnknownName(Objection("unknown_version", reason, parameter="version"))
        set_version(request, newest.stream_version)
        return entry_view(wanted, newest=newest.version)


def _add_versions(router: APIRouter, kind: _Kind) -> None:
    @router.get(
        f"/{kind.in_path}/versions",
        response_model=kind.page,
        description=f"List the versions of {kind.a_word}, by default the oldest first.",
        openapi_extra=access(Scope.CATALOGUE_READ),
    )
    async def list_versions(
        request: Request,
        entry: Annotated[str, kind.parameter],
        *,
        cursor: Cursor = None,
        limit: Limit = 100,
        order: Order = "asc",
    ) -> Page[EntryView]:
        name = kind.named_in_path(entry)
        async with plane_of(request).engine.connect() as conn:
            versions = await _versions(conn, kind.name, name, _END)
        if not versions:
            raise UnknownName(unknown_entry(kind.name, name))
        newest = versions[-1].version
        views = [entry_view(each, newest=newest) for each in versions]
        return page_of(views, numbered(views), cursor, limit, order)


def _add_changes(router: APIRouter, kind: _Kind) -> None:
    @router.put(
        f"/{kind.in_path}",
        response_model=kind.view,
        dependencies=[IF_MATCH],
        description=f"Publish a further version of {kind.a_word}, which is offered from now on, even if the entry was"
        " retired. If the newest version is offered and has this content, nothing changes. Existing allocations keep their"
        " version.",
        openapi_extra=access(Scope.CATALOGUE_WRITE),
    )
    async def publish(
        request: Request,
        principal: Caller,
        entry: Annotated[str, kind.parameter],
        body: kind.publish,  # type: ignore[name-defined]  # FastAPI reads the class of this kind of entries
    ) -> EntryView:
        name = kind.named_in_path(entry)
        command = publish_version(kind.name, name, body.content, origin_of(request, principal))
        return await _execute(request, kind, name, command)

    @router.post(
        f"/{kind.in_path}/retire",
        response_model=kind.view,
        dependencies=[IF_MATCH],
        description=f"Retire {kind.a_word}: no new allocation can name it. Existing allocations are not affected."
        " Idempotent.",
        openapi_extra=access(Scope.CATALOGUE_WRITE),
    )
    async def retire(
        request: Request, principal: Caller, entry: Annotated[str, kind.parameter], body: RetireEntry
    ) -> EntryView:
        name = kind.named_in_path(entry)
        command = retire_entry(kind.name, name, body.reason, origin_of(request, principal))
        return await _execute(request, kind, name, command)


async def _execute(request: Request, kind: _Kind, name: str, command: Command) -> EntryView:
    await execute(request, command, stream_of_entry(kind.name, name))
    return await _shown(request, kind, name)


async def _shown(request: Request, kind: _Kind, name: str) -> EntryView:
    """Return the present view of an entry, and set the ETag of the response. Raises `UnknownName` if it does not
    exist.
    """
    async with plane_of(request).engine.connect() as conn:
        found = (await catalogue.find(conn, [(kind.name, name)])).get(kind.name)
    if found is None:
        raise UnknownName(unknown_entry(kind.name, name))
    set_version(request, found.stream_version)
    return entry_view(found, caller_of(request))


def _page(views: list[EntryView], found: Sequence[Entry], limit: int) -> Page[EntryView]:
    return Page(items=views, next_cursor=found[-1].name if len(found) == limit else None)


async def _entries_then(
    conn: AsyncConnection, kind: EntryKind, names: Sequence[str], position: Position
) -> list[Entry]:
    """Return the named entries as they were at a position of the ledger, without those that were created later."""
    # A swap of the tables blocks all appends while it waits for the locks of the query for the names.
    await conn.rollback()
    streams = [stream_of_entry(kind, name) for name in names]
    rows = await rows_at(await ledger_connection(conn), CATALOGUE, streams, position)
    return [catalogue.entry_in(rows[stream]) for stream in streams if stream in rows]


async def _versions(conn: AsyncConnection, kind: EntryKind, name: str, upto: Position) -> list[Entry]:
    """Return the versions of an entry up to a position of the ledger, oldest first. Only the last version contains
    whether the entry was retired at that position.
    """
    stream = stream_of_entry(kind, name)
    history = (await streams_up_to(await ledger_connection(conn), [stream], upto)).get(stream, [])
    if (row := row_of(CATALOGUE, history)) is None:
        return []
    newest = catalogue.entry_in(row)
    earlier = [
        Entry(kind, name, each.version, each.fact.version, each.fact.content, None)
        for each in history
        if isinstance(each.fact, EntryPublished) and each.fact.version < newest.version
    ]
    return [*earlier, newest]


_KINDS: Final = (
    _Kind("sku", "skus", CreateSku, PublishSku, sku_name),
    _Kind("image", "images", CreateImage, PublishImage, image_name),
    _Kind("app_profile", "app-profiles", CreateAppProfile, PublishAppProfile, app_profile_name),
)
ROUTERS: Final = tuple(map(_routes, _KINDS))
