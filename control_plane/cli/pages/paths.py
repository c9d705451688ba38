"""Table of the network paths, and their security warnings, each listed once."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from control_plane.client.answers import ReachPath


def paths(items: Iterable[ReachPath]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in (
        "FROM",
        "TO",
        "ADDRESS",
        "TRANSPORT",
        "ENCRYPTED",
        "WITH A PRIVATE REDIS",
        "CREDENTIAL",
    ):
        table.add_column(name, no_wrap=True)
    for item in items:
        encrypted = Text("yes", "green") if item.encrypted else Text("no", "yellow" if item.warnings else "")
        kept = Text("works") if item.survives_private_redis else Text("fails", "yellow")
        table.add_row(
            item.client,
            item.server,
            item.address,
            item.transport,
            encrypted,
            kept,
            item.credential,
        )
    return table


def warnings(items: Iterable[ReachPath]) -> dict[str, list[str]]:
    """Return each security warning with the network paths that it concerns."""
    found: dict[str, list[str]] = {}
    for item in items:
        for warning in item.warnings:
            found.setdefault(warning, []).append(f"{item.client} to {item.server}")
    return found
