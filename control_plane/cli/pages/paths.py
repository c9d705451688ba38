"""Who reaches what: one line a path, and each warning once."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from control_plane.cli.answers import ReachPath


def paths(items: Iterable[ReachPath]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in (
        "WHO",
        "REACHES",
        "AT",
        "OVER",
        "ENCRYPTED",
        "WITH A PRIVATE REDIS",
        "BY",
    ):
        table.add_column(name, no_wrap=True)
    for item in items:
        encrypted = Text("yes", "green") if item.encrypted else Text("no", "yellow" if item.warnings else "")
        kept = Text("goes on") if item.survives_private_redis else Text("ends", "yellow")
        table.add_row(
            item.who,
            item.reaches,
            item.at,
            item.transport,
            encrypted,
            kept,
            item.credential,
        )
    return table


def warnings(items: Iterable[ReachPath]) -> dict[str, list[str]]:
    """Each, and the paths that it is about."""
    found: dict[str, list[str]] = {}
    for item in items:
        for warning in item.warnings:
            found.setdefault(warning, []).append(f"{item.who} to {item.reaches}")
    return found
