"""Command `sliceplane access-log`, which lists the requests that the API has received."""

from typing import Annotated

import typer

from control_plane.cli.options import Output
from control_plane.cli.pages import access as pages
from control_plane.cli.screen import Format
from control_plane.cli.session import session
from control_plane.cli.times import Since, Until
from control_plane.client import calls

commands = typer.Typer(no_args_is_help=True)


@commands.command("list")
def list_requests(
    context: typer.Context,
    *,
    request: Annotated[
        str | None,
        typer.Option(help="Only the request with this id, such as that of an error.", metavar="ID"),
    ] = None,
    principal: Annotated[
        str | None, typer.Option(help="Only requests of this principal, such as key:ci-0c1d2e3f4a5b.")
    ] = None,
    route: Annotated[
        str | None, typer.Option(help="Only requests of this route, such as '/v1/nodes/{node}'.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only requests with this method, such as POST.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            help="Only requests with this outcome: completed, refused, failed, aborted, interrupted, or open for"
            " requests in progress."
        ),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only requests of this client address.")] = None,
    since: Since = None,
    to: Until = None,
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="POSITION",
            help="Only requests after this position of the access log, oldest first.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of requests to list.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List the requests that the API has received, newest first, with principal, source and outcome."""
    which = calls.access_log(
        request_id=request,
        principal=principal,
        route=route,
        method=method,
        outcome=outcome,
        source=source,
        since=since,
        to=to,
        after=after,
        order=None if after is None else "asc",
    )
    with session(context, output) as current:
        current.show_list(which, pages.requests, limit)
