"""Pages of heads, proofs and verdicts about the ledger."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, page
from control_plane.cli.pages.tables import nothing, table
from control_plane.client.audit_answers import Head, InclusionProof, Sinks

if TYPE_CHECKING:
    from control_plane.audit.verify import Verdict

MOST_DIFFERENCES: Final = 100
"""Differences that the page of a verdict lists; the formats for programs have all."""


def head(item: Head) -> Table:
    return page(_head(item))


def _head(item: Head) -> Iterator[Row]:
    yield "head", Text(str(item.number), "bold")
    yield "positions", f"{item.size:,}"
    yield "root", item.root
    yield "epoch", str(item.epoch)
    yield "sealed", f"{words.instant(item.sealed_at)} ({words.since(item.sealed_at)})"


def kept(item: Head) -> Text:
    """Return one line about a signed head that was added to the file of kept heads."""
    return Text(f"{words.instant(item.sealed_at)}  kept head {item.number} of {item.size:,} positions")


def sinks(item: Sinks) -> RenderableType:
    rows = table("SINK", "HEAD", "OF", "STORED", "PROBLEM")
    for each in item.sinks:
        problem = "-"
        if each.error is not None and each.failing_since is not None:
            problem = f"since {words.instant(each.failing_since)}: {each.error}"
        stored = "-" if each.stored_at is None else words.since(each.stored_at)
        rows.add_row(each.name, _number(each.number), _number(item.newest), stored, problem)
    return (
        rows
        if rows.row_count
        else nothing("no sinks", "name one in the settings of the sealer: SLICEPLANE_HEADS_FILE")
    )


def _number(head: int | None) -> str:
    return "-" if head is None else str(head)


def proof(item: InclusionProof) -> Table:
    return page(_proof(item))


def _proof(item: InclusionProof) -> Iterator[Row]:
    yield "position", Text(str(item.position), "bold")
    yield "leaf", item.leaf
    yield "positions in the tree", f"{item.size:,}"
    yield "proof", "\n".join(item.hashes) or "-"
    if item.head is not None:
        yield "head", f"{item.head.number}, root {item.head.root}"


def verdict(item: "Verdict") -> RenderableType:
    """Return the page of a verification: its differences, and what it covers."""
    parts: list[RenderableType] = []
    if item.differences:
        rows = table("KIND", "POSITION", "WHAT")
        for each in item.differences[:MOST_DIFFERENCES]:
            rows.add_row(each.kind, "-" if each.position is None else str(each.position), each.what)
        parts.append(rows)
    if len(item.differences) > MOST_DIFFERENCES:
        more = len(item.differences) - MOST_DIFFERENCES
        parts.append(Text(f"and {more:,} more; list them with -o json", style="dim"))
    return Group(*parts, page(_summary(item)))


def _summary(item: "Verdict") -> Iterator[Row]:
    if not item.differences:
        yield "verdict", Text("the history is as it was sealed", "bold")
    yield "rows", f"{item.rows:,}"
    yield "sealed", f"{item.sealed:,} positions"
    if item.head is None:
        yield "head", "none"
    else:
        found = item.head.head
        yield "head", f"{found.number}, sealed {words.instant(found.sealed_at)}"
        yield "root", found.root
    yield "kept heads", f"{item.kept:,} in the export"
    if item.exported_at is not None:
        yield "exported", words.instant(item.exported_at)
    for note in item.notes:
        yield "note", note
