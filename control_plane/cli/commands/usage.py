"""Commands of `sliceplane usage`: show and export usage, and list and close billing periods."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec import UNSET

from control_plane.cli.files import write_new_file
from control_plane.cli.options import Output, UnnamedOutput
from control_plane.cli.pages import usage as pages
from control_plane.cli.screen import Format, UnnamedFormat
from control_plane.cli.session import refuse_as_curl, session
from control_plane.cli.times import Since, Until, time_option
from control_plane.client import calls
from control_plane.client.bodies import ClosePeriod
from control_plane.client.paths import usage_params

commands = typer.Typer(no_args_is_help=True)
period_commands = typer.Typer(no_args_is_help=True)
commands.add_typer(period_commands, name="periods", help="List, show and close billing periods.")
Period = Annotated[
    str | None,
    typer.Option(
        help="Only the bill of this billing period, with its corrections of earlier periods: name of a closed period,"
        " or open.",
        show_default=False,
    ),
]
PeriodArgument = Annotated[
    str, typer.Argument(metavar="PERIOD", help="Name of a billing period, such as 2026-11.")
]
Project = Annotated[str | None, typer.Option(help="Only usage of this project.", show_default=False)]
Sku = Annotated[str | None, typer.Option(help="Only usage of this SKU.", show_default=False)]


class ExportFormat(StrEnum):
    """Format of an export."""

    CSV = "csv"
    FOCUS = "focus"


_MONTH = "that of the month that the period is named after"
Label = Annotated[
    str | None,
    typer.Option(metavar="NAME=VALUE", help="Only usage of allocations with this label.", show_default=False),
]


@commands.callback()
def group() -> None:
    """Show what was used, at which price, and the events that it follows from."""


@commands.command()
def show(
    context: typer.Context,
    *,
    since: Since = None,
    to: Until = None,
    period: Period = None,
    project: Project = None,
    sku: Sku = None,
    label: Label = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="GROUPING", help="Group by project, sku or label:NAME.", show_default=False),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="List the entries of the total, each with its events.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries of --explain.")] = 100,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """Show slot-seconds and price in a range of time or a billing period, in total and by group."""
    which = {"since": since, "to": to, "period": period, "project": project, "sku": sku, "label": label}
    with session(context, output) as current:
        if explain:
            current.show_list(calls.usage_entries(**which), pages.entries, limit)
        else:
            page = partial(pages.usage, grouping=group_by)
            current.screen.one(current.send(calls.usage(**which, group_by=group_by)), page)


@commands.command()
def unused(
    context: typer.Context,
    *,
    since: Since = None,
    to: Until = None,
    period: Period = None,
    project: Project = None,
    sku: Sku = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = 100,
    output: UnnamedOutput = UnnamedFormat.TABLE,
) -> None:
    """List the times in which reserved slots were not held, each with its events."""
    with session(context, output) as current:
        call = calls.unused_reservations(since=since, to=to, period=period, project=project, sku=sku)
        current.show_list(call, pages.unused, limit)


@commands.command()
def export(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; it must not exist.")],
    *,
    format_: Annotated[
        ExportFormat, typer.Option("--format", help="csv; or focus: FOCUS 1.0, for a billing period.")
    ] = ExportFormat.CSV,
    period: Period = None,
    since: Since = None,
    to: Until = None,
    project: Project = None,
    sku: Sku = None,
    label: Label = None,
) -> None:
    """Write the entries of a billing period or a range of time into a file, one line for each."""
    refuse_as_curl(context, "usage export")
    which = usage_params(since=since, to=to, period=period, project=project, sku=sku, label=label)
    with session(context, UnnamedFormat.TABLE) as current:
        pieces = current.client.download("/v1/usage/export", {**which, "format": format_.value})
        write_new_file(file, pieces)


@period_commands.command("list")
def list_periods(context: typer.Context, *, output: Output = Format.TABLE) -> None:
    """List the billing periods. The last one is the open period."""
    with session(context, output) as current:
        current.show_list(calls.billing_periods(), pages.periods)


@period_commands.command("show")
def show_period(context: typer.Context, *, period: PeriodArgument, output: Output = Format.TABLE) -> None:
    """Show a billing period, or open, with the totals of its bill."""
    with session(context, output) as current:
        current.screen.one(current.send(calls.billing_period(period)), pages.period)


@period_commands.command("close")
def close_period(
    context: typer.Context,
    *,
    period: PeriodArgument,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="WHEN", callback=time_option, help="Begin of the period.", show_default=_MONTH
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="WHEN", callback=time_option, help="End of the period.", show_default=_MONTH
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Close a billing period after it has ended. Its usage becomes final, and later events that change it
    become corrections in the next period.
    """
    body = ClosePeriod(starts_at=since or UNSET, ends_at=to or UNSET)
    with session(context, output) as current:
        current.screen.one(current.send(calls.close_billing_period(period, body)), pages.period)
