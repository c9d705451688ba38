"""The commands of the client, registered in one place."""

from pathlib import Path
from typing import Annotated

import typer

from control_plane.cli.access import Given
from control_plane.cli.commands import (
    access_log,
    allocations,
    audit,
    capacity,
    catalogue,
    consoles,
    contexts,
    doctor,
    events,
    history,
    keys,
    nodes,
    paths,
    principals,
    projections,
    projects,
    reservations,
    service_accounts,
    sessions,
    slots,
    ssh,
    status,
    tasks,
    usage,
)
from control_plane.version import release

_EPILOG = """
**Exit codes:** 0 success · 1 the control plane refused or is not ready, or tables differ from the ledger, or the ledger
differs from its signed heads · 2 wrong usage · 3 no access · 4 the control plane is unreachable or returned an invalid response · 5 accepted but not completed: the allocation
failed or did not become active, a task failed, or an event stopped a rebuild or a verification · 130 interrupted
"""

program = typer.Typer(
    help="Manage slices of GPU hosts: create, watch and release allocations.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
program.add_typer(
    allocations.commands,
    name="allocations",
    help="Create, watch, stop, start and release allocations.",
)
program.command()(ssh.ssh)
program.add_typer(
    slots.commands, name="slots", help="List and approve slots, the places for slices on nodes."
)
program.add_typer(nodes.commands, name="nodes", help="Register, list and revoke nodes; show their drift.")
program.add_typer(
    paths.commands,
    name="paths",
    help="List the network paths between the parts of Sliceplane, with transport and credential.",
)
program.add_typer(
    projects.commands, name="projects", help="Create, list and archive projects, the owners of allocations."
)
program.add_typer(
    reservations.commands,
    name="reservations",
    help="List, set and remove slots that are kept free for a project.",
)
program.add_typer(
    service_accounts.commands,
    name="service-accounts",
    help="Create, list, disable and enable service accounts, the identities of workloads.",
)
program.add_typer(keys.commands, name="keys", help="Issue, list, rotate and revoke API keys.")
program.add_typer(consoles.commands, name="consoles", help="List and cut console sessions of admins.")
program.add_typer(sessions.commands, name="sessions", help="List and end sessions, which logins start.")
program.add_typer(
    principals.commands, name="principals", help="Revoke every credential of a caller; set its limits."
)
program.add_typer(access_log.commands, name="access-log", help="List the requests that the API has received.")
program.command()(keys.whoami)
program.add_typer(
    catalogue.sku_commands, name="skus", help="List, publish and retire SKUs, the sizes of slices."
)
program.add_typer(
    catalogue.image_commands, name="images", help="List, publish and retire images, from which slices boot."
)
program.add_typer(
    catalogue.app_profile_commands,
    name="app-profiles",
    help="List, publish and retire app profiles, the requirements of workloads.",
)
program.add_typer(
    capacity.commands,
    name="capacity",
    help="Show how many more allocations of one slot fit for each SKU, and its slots by status.",
)
program.add_typer(
    usage.commands,
    name="usage",
    help="Show what was used, at which price, and the events that it follows from.",
)
program.add_typer(events.commands, name="events", help="List and follow the events of the ledger.")
program.add_typer(
    history.commands,
    name="history",
    help="Show past states, and which events changed them.",
)
program.add_typer(
    audit.commands,
    name="audit",
    help="Prove that the history was not changed: signed heads, proofs, export, offline verification.",
)
program.add_typer(
    tasks.commands,
    name="tasks",
    help="Inspect, request, retry and cancel node tasks.",
)
program.add_typer(
    projections.commands,
    name="projections",
    help="Rebuild and verify the tables derived from the ledger.",
)
program.command()(status.status)
program.command()(doctor.doctor)
program.command()(contexts.login)
program.command()(contexts.logout)
program.add_typer(
    contexts.commands,
    name="contexts",
    help="List, choose and remove the control planes that you logged in to.",
)


def _print_version(given: bool | None) -> None:  # noqa: FBT001 (Typer's signature)
    if given:
        print(f"sliceplane {release()}")
        raise typer.Exit


@program.callback()
def connect(
    context: typer.Context,
    *,
    url: Annotated[
        str | None,
        typer.Option(help="URL of the control plane. Default: SLICEPLANE_URL.", show_default=False),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="API key. Default: SLICEPLANE_API_KEY, which keeps the key out of the process list.",
            show_default=False,
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            help="CA bundle (PEM) used to verify the control plane. Default: SLICEPLANE_CA.",
            show_default=False,
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            help="Project for commands that act on one. Default: SLICEPLANE_PROJECT, else that of the context.",
            show_default=False,
        ),
    ] = None,
    named: Annotated[
        str | None,
        typer.Option("--context", help="Context to use. Default: the current one.", show_default=False),
    ] = None,
    as_curl: Annotated[
        bool,
        typer.Option(
            "--as-curl",
            help="Print the request of the command as a curl command without the secret, and do not send it.",
        ),
    ] = False,
    _version: Annotated[
        bool | None,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = None,
) -> None:
    """Manage slices of GPU hosts: create, watch and release allocations.

    Without --url and --api-key, and without SLICEPLANE_URL and SLICEPLANE_API_KEY, both are those of the context that
    `sliceplane login` stored, else those in the `client.json` that `./dev up` wrote. The same applies to the CA.
    """
    context.obj = Given(url, api_key, ca, project, named, as_curl)
