"""The whole command line, wired in one place."""

from pathlib import Path
from typing import Annotated

import typer

from control_plane.cli.commands import (
    allocations,
    events,
    history,
    nodes,
    paths,
    projections,
    skus,
    slots,
    ssh,
    status,
    tasks,
)
from control_plane.cli.session import Wanted
from control_plane.version import release

_EPILOG = """
**Exit codes:** 0 done · 1 the control plane refused or is not ready, or tables differ from the ledger · 2 wrong usage · 3 no
access · 4 the control plane cannot be reached or did not answer sensibly · 5 begun and not done: the allocation
failed or did not become active, a task came to a bad end, or an event stopped a rebuild or a verification · 130 interrupted
"""

program = typer.Typer(
    help="Slices on GPU hosts: ask for them, watch them come up, give them back.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
program.add_typer(
    allocations.commands,
    name="allocations",
    help="Ask for slices, watch and release them.",
)
program.command()(ssh.ssh)
program.add_typer(slots.commands, name="slots", help="Places for slices on nodes.")
program.add_typer(nodes.commands, name="nodes", help="Hosts.")
program.add_typer(
    paths.commands,
    name="paths",
    help="Who reaches what, over which transport and by which credential.",
)
program.add_typer(skus.commands, name="skus", help="Sizes that can be asked for.")
program.add_typer(events.commands, name="events", help="The ledger: everything that happened.")
program.add_typer(
    history.commands,
    name="history",
    help="The past: what was true when, what changed, who and why.",
)
program.add_typer(
    tasks.commands,
    name="tasks",
    help="What nodes are to do: look, ask, try again, stop.",
)
program.add_typer(
    projections.commands,
    name="projections",
    help="Tables that follow from the ledger: rebuild and verify them.",
)
program.command()(status.status)


def _print_version(given: bool | None) -> None:  # noqa: FBT001 (Typer's signature)
    if given:
        print(f"sliceplane {release()}")
        raise typer.Exit


@program.callback()
def connect(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(help="Where the control plane is. Else SLICEPLANE_URL.", show_default=False),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Else SLICEPLANE_API_KEY, which keeps it out of the process list.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            help="CA (PEM) that the control plane is believed by. Else SLICEPLANE_CA.",
            show_default=False,
        ),
    ] = None,
    _version: Annotated[
        bool | None,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = None,
) -> None:
    """Slices on GPU hosts: ask for them, watch them come up, give them back.

    Without --url and --api-key, and without SLICEPLANE_URL and SLICEPLANE_API_KEY, both come from the JSON file
    named by SLICEPLANE_CONFIG, or the `client.json` that `./dev up` wrote. So does the CA of that URL.
    """
    context.obj = Wanted(url, api_key, ca)
