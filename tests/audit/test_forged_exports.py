"""Tests of the audit verifier with forged exports: with rows that precede their head, and with sealed rows that do not
encode an event.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from control_plane.audit.heads import (
    Head,
    Part,
    SignedHead,
    part_digest,
    sign_head,
    text_digest,
    trusted_keys,
)
from control_plane.audit.lines import (
    ENCODER,
    FORMAT,
    EndLine,
    EventLine,
    ExportLine,
    HeadLine,
    Line,
    SealedLine,
    StreamLine,
)
from control_plane.audit.rows import event_leaf
from control_plane.audit.verify import Kind, Verdict, verify_export
from events.ledger.merkle import EventRow, encoding_of
from events.ledger.tree import Frontier
from tests.audit.sealed import SIGNER, compressed

NOW = datetime(2026, 11, 29, tzinfo=UTC)
KEYS = trusted_keys([SIGNER.public])


def row(position: int, stream: str, version: int, **columns: Any) -> bytes:
    found = EventRow(
        position, UUID(int=position), stream, version, "x.y", 1, None, "a", "r", UUID(int=7), None, None, NOW, NOW, 1, "{}"
    )  # fmt: skip
    return encoding_of(found._replace(**columns))[2:]


def heads(groups: Iterable[Sequence[bytes]]) -> list[SignedHead]:
    """Return the heads that a sealer signs after each of these groups of rows."""
    found, frontier, previous = list[SignedHead](), Frontier(), None
    for number, group in enumerate(groups, 1):
        frontier.extend(map(event_leaf, group), 64)
        state = {part: part_digest([]) for part in Part}
        head = Head(number, frontier.size, frontier.root.hex(), 1, NOW, previous, state)
        found.append(sign_head(SIGNER, head))
        previous = text_digest(found[-1].text)
    return found


def leaves(rows: Iterable[bytes]) -> bytes:
    return b"".join(map(event_leaf, rows))


def verdict_of(folder: Path, head: SignedHead, lines: Sequence[Line]) -> Verdict:
    path = folder / "export.zst"
    all_lines = [ExportLine(FORMAT, NOW), *lines, EndLine(1000, len(lines) + 1)]
    path.write_bytes(compressed(ENCODER.encode(line) + b"\n" for line in all_lines))
    return verify_export(path, KEYS, [head.text])


def kinds(verdict: Verdict) -> set[tuple[Kind, int | None]]:
    return {(each.kind, each.position) for each in verdict.differences}


GOOD = [row(1, "s", 1), row(2, "s", 2)]


def test_export_with_the_sealed_rows_unchanged_has_no_differences(tmp_path: Path) -> None:
    [head] = heads([GOOD])
    lines: list[Line] = [HeadLine(head.text, leaves(GOOD)), *map(SealedLine, GOOD), StreamLine("s", 2)]
    assert verdict_of(tmp_path, head, lines).differences == []


def test_verifier_reports_a_changed_row_that_precedes_its_head_in_the_export(tmp_path: Path) -> None:
    [head] = heads([GOOD])
    changed = [row(1, "s", 1, reason="forged"), GOOD[1]]
    early = [EventLine(each, event_leaf(each)) for each in changed]
    verdict = verdict_of(tmp_path, head, [*early, HeadLine(head.text, leaves(GOOD)), StreamLine("s", 2)])
    assert kinds(verdict) == {(Kind.EXPORT, 1), (Kind.ROW_CHANGED, 1)}


def test_changed_row_is_found_even_if_the_size_stored_with_a_head_was_changed_too(
    tmp_path: Path,
) -> None:
    later = [row(3, "s", 3), row(4, "s", 4)]
    first, second = heads([GOOD, later])
    changed = [row(3, "s", 3, reason="forged"), later[1]]
    lines: list[Line] = [
        HeadLine(first.text, leaves(GOOD)),
        *map(SealedLine, GOOD),
        *(EventLine(each, event_leaf(each)) for each in changed),
        HeadLine(second.text, leaves(later)),
        StreamLine("s", 4),
    ]
    assert kinds(verdict_of(tmp_path, second, lines)) == {(Kind.EXPORT, 3), (Kind.ROW_CHANGED, 3)}


@pytest.mark.parametrize(
    "sealed",
    [
        row(2, "s", 1).replace(b"\0\0\0\x01s", b"\0\0\0\x01\xff"),
        row(2, "s", 1, type=None),
        row(2, "x" * 15 + "\1s", 1, event_id=None),
        row(2, None, 1, type="t" * 10, reason="r" * 146, observed_at=datetime(2000, 1, 1, 0, 0, 0, 1, UTC)),  # type: ignore[arg-type]  # a column that was made nullable
        b"\0\0\0\x63\xde\xad\xbe\xef" + row(2, "s", 1)[8:],
        row(2, "s", 1)[:48] + b"\x7f\0\0\x01" + row(2, "s", 1)[52:],
        row(2, "s", 1, correlation_id=UUID(bytes=b"\0\0\0\x17\0\0\0\4\0\0\0\1" + bytes(4))).replace(
            b"\0\0\0\x17\0\0\0\4\0\0\0\1\0\0\0\x19", b"\0\0\0\x14\0\0\0\4\0\0\0\x63\0\0\0\x19"
        ),
    ],
    ids=[
        "name not utf-8",
        "null type",
        "null event id",
        "null name",
        "other type",
        "long name",
        "other epoch",
    ],
)
def test_verifier_reports_a_sealed_row_that_does_not_encode_an_event_as_changed(
    tmp_path: Path, sealed: bytes
) -> None:
    # The first row of a ledger is always read completely, because it begins an epoch.
    rows = [row(1, "t", 1), sealed]
    [head] = heads([rows])
    lines: list[Line] = [
        HeadLine(head.text, leaves(rows)),
        *map(SealedLine, rows),
        StreamLine("s", 1),
        StreamLine("t", 1),
    ]
    assert Kind.ROW_CHANGED in {each.kind for each in verdict_of(tmp_path, head, lines).differences}


def test_verifier_names_changed_rows_even_if_the_stored_leaves_of_an_earlier_head_were_changed_too(
    tmp_path: Path,
) -> None:
    later = [row(3, "s", 3), row(4, "s", 4)]
    first, second = heads([GOOD, later])
    stored = bytearray(leaves(GOOD))
    stored[40] ^= 1
    lines: list[Line] = [
        HeadLine(first.text, bytes(stored)),
        SealedLine(row(1, "s", 1, reason="forged")),
        EventLine(GOOD[1], event_leaf(GOOD[1])),
        HeadLine(second.text, leaves(later)),
        SealedLine(later[0]),
        SealedLine(row(4, "s", 4, reason="forged")),
        StreamLine("s", 4),
    ]
    found = kinds(verdict_of(tmp_path, second, lines))
    assert {(Kind.ROW_CHANGED, 1), (Kind.ROW_CHANGED, 4), (Kind.HEAD_LEAVES, None)} <= found
