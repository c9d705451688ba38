"""Verify an export of the ledger offline, with public keys and heads that an auditor kept (LED-7).

Only data that a signature covers is trusted. Signed heads give the root of the tree, and the roots show
whether the leaves that the heads store are those that were sealed. Each leaf is then computed again from the columns of
its row and compared with the sealed leaf, so that a difference has a position. If the stored leaves themselves were
changed, the roots still show whether the rows of a head are those that were sealed, but not which one differs.

Heads contain the hash of the previous head, so one kept head proves all earlier heads. An export without a kept head
can end with any head that was ever signed: the removal of newer events and heads cannot be detected then.

Events after the newest head are not sealed. Their stored leaves reveal a change only if the leaves were not computed
again after it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Final, assert_never

import msgspec
from joserfc.jwk import OKPKey
from zstandard import ZstdDecompressor, ZstdError

from control_plane.audit.heads import (
    BadHead,
    Head,
    Part,
    PartRow,
    SignedHead,
    head_of,
    part_digest,
    text_digest,
    verify_head,
)
from control_plane.audit.lines import (
    DECODER,
    FORMAT,
    CheckpointLine,
    ClaimLine,
    DeadLine,
    EndLine,
    EventLine,
    ExportLine,
    HeadLine,
    KeyLine,
    Line,
    PartLine,
    SealedLine,
    StrayKeyLine,
    StreamLine,
)
from control_plane.audit.rows import (
    BadRow,
    Dead,
    Event,
    dead_leaf,
    dead_of,
    event_leaf,
    event_of,
    sealed_columns_of,
    sealed_data_of,
)
from events.catalog import CATALOG, UnknownFact, UnreadableFact, decode
from events.claims import CLAIMING, claims_of
from events.ledger.tree import HASH_BYTES, Frontier

UNSEALED_SECONDS: Final = 10.0
"""Time within which a change of sessions may not be sealed yet. The sealer seals such a change within 3 s."""
_NO_LEVEL: Final = 64
_INPUT_BYTES: Final = 1 << 12
"""Compressed bytes per call of the decompressor. A block of 4 bytes can become 128 KiB, and thus a call 128 MiB."""
_PIECE_BYTES: Final = 1 << 18
"""Decompressed bytes that are collected before their complete lines are read."""
_LINE_BYTES: Final = 1 << 30
"""The longest line that is accepted."""
_WINDOW_BYTES: Final = 1 << 27
"""The largest window of a compressed export, as the program zstd accepts it by default."""
_CLAIMING_TYPES: Final = frozenset(
    name.encode() for name, shape in CATALOG.items() if issubclass(shape.fact, CLAIMING)
)


class Kind(StrEnum):
    """Kind of a difference between an export and what was sealed. docs/audit.md describes each kind."""

    EXPORT = "export"
    HEAD_SIGNATURE = "head_signature"
    HEAD_CHAIN = "head_chain"
    HEAD_MISSING = "head_missing"
    HEAD_LEAVES = "head_leaves"
    FORK = "fork"
    TREE = "tree"
    ROW_CHANGED = "row_changed"
    LEAF_CHANGED = "leaf_changed"
    ROW_REMOVED = "row_removed"
    ROW_ADDED = "row_added"
    NOTED_DEAD = "noted_dead"
    EPOCH_ORDER = "epoch_order"
    STREAM_VERSION = "stream_version"
    STREAM_HEAD = "stream_head"
    CLAIM = "claim"
    KEYS = "keys"
    SESSIONS = "sessions"
    EPOCHS = "epochs"
    FUNCTIONS = "functions"
    ROLES = "roles"
    SEQUENCE = "sequence"
    CHECKPOINT = "checkpoint"


_OF_PART: Final[Mapping[Part, Kind]] = {
    Part.EPOCHS: Kind.EPOCHS,
    Part.FUNCTIONS: Kind.FUNCTIONS,
    Part.KEYS: Kind.KEYS,
    Part.ROLES: Kind.ROLES,
    Part.SESSIONS: Kind.SESSIONS,
}
_UNCHANGING: Final = (Part.EPOCHS, Part.FUNCTIONS, Part.ROLES)
"""Parts of the database of which an auditor has to review each change: a change since the oldest kept head is a
difference."""


class Difference(msgspec.Struct, frozen=True):
    """One difference; `position` is that in the ledger, None if the difference has none."""

    kind: Kind
    position: int | None
    what: str


@dataclass
class Verdict:
    """The result of a verification. The history is as it was sealed if there are no `differences`.

    `rows` is the number of rows that were read, `sealed` the last sealed position, `head` the newest valid head,
    `kept` the number of kept heads that are in the export, and `notes` state what was not proved.
    """

    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: int = 0
    sealed: int = 0
    exported_at: datetime | None = None
    head: SignedHead | None = None
    kept: int = 0

    def add(self, kind: Kind, what: str, position: int | None = None) -> None:
        """Add a difference."""
        self.differences.append(Difference(kind, position, what))


def verify_export(
    path: Path,
    keys: Mapping[str, OKPKey],
    kept: Iterable[str],
    *,
    unsealed_seconds: float = UNSEALED_SECONDS,
) -> Verdict:
    """Verify the export in a file; `kept` are texts of heads. Never raises for a damaged export; raises `OSError` for a
    file that cannot be read.
    """
    verdict, texts = Verdict(), [*kept]
    if not texts:
        verdict.notes.append(
            "no kept head was given: the removal of the newest events and heads cannot be detected"
        )
    verification = _Verification(keys, _kept_heads(texts, keys, verdict), verdict, unsealed_seconds)
    try:
        pending, complete = bytearray(), 0
        for piece in _decompressed(path):
            if (newline := piece.rfind(b"\n")) >= 0:
                complete = len(pending) + newline + 1
            pending += piece
            if len(pending) >= _PIECE_BYTES and complete:
                verification.read(pending[:complete])
                del pending[:complete]
                complete = 0
            if len(pending) > _LINE_BYTES:
                verdict.add(
                    Kind.EXPORT,
                    f"a line is longer than {_LINE_BYTES} bytes: the file is damaged or not an export; export again",
                )
                return verdict
        verification.read(pending)
    except (EOFError, ZstdError) as error:
        # The rest of the export is missing, so nothing can be concluded from what it would contain.
        verdict.add(Kind.EXPORT, f"the export is truncated or damaged: {error}; export again")
        return verdict
    verification.finish()
    return verdict


def _decompressed(path: Path) -> Iterator[bytes]:
    """Yield the content of a Zstandard file in pieces. Raises `OSError`, and `EOFError` or `ZstdError` for a damaged
    file.
    """
    decompressor = ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    frame = decompressor.decompressobj()
    with path.open("rb") as file:
        while compressed := file.read(_INPUT_BYTES):
            while compressed:
                if frame.eof:
                    frame = decompressor.decompressobj()
                yield frame.decompress(compressed)
                compressed = frame.unused_data
    if not frame.eof:
        raise EOFError("the compressed file ends before its last block")


def _kept_heads(texts: Iterable[str], keys: Mapping[str, OKPKey], verdict: Verdict) -> list[SignedHead]:
    """Return the valid heads among kept texts, in the order of their numbers; of one number, that of the last epoch.

    The beginning of another kept text is ignored: it is a line that was written only in part.
    """
    stripped = sorted({text.strip() for text in texts} - {""})
    found: dict[int, SignedHead] = {}
    for text, following in zip(stripped, [*stripped[1:], ""], strict=False):
        if following.startswith(text):
            continue
        try:
            head = verify_head(text, keys)
        except BadHead as bad:
            verdict.add(Kind.HEAD_SIGNATURE, f"a kept head is not valid: {bad}")
            continue
        other = found.setdefault(head.head.number, head)
        if other.text != head.text and other.head.epoch == head.head.epoch:
            verdict.add(
                Kind.FORK, f"two kept heads have the number {head.head.number}: the sealer signed a fork"
            )
        if head.head.epoch > other.head.epoch:
            found[head.head.number] = head
    return sorted(found.values(), key=lambda each: each.head.number)


@dataclass
class _Sealed:
    """The positions that the newest head adds: after `begin`, up to `end`.

    `stored` are the leaves that the head stores, and `leaves` the same if the root proves them, else empty: then the
    leaves of the rows are collected in `computed` and compared with the root at the end.
    """

    begin: int = 0
    end: int = 0
    stored: Sequence[bytes] = ()
    leaves: Sequence[bytes] = ()
    computed: list[bytes] = field(default_factory=list)

    def expected(self, position: int) -> bytes | None:
        """Return the sealed leaf of a position, None if it is not known."""
        return self._at(self.leaves, position)

    def stored_at(self, position: int) -> bytes | None:
        """Return the leaf of a position that the head stores, None if it stores none."""
        return self._at(self.stored, position)

    def _at(self, leaves: Sequence[bytes], position: int) -> bytes | None:
        index = position - self.begin - 1
        return leaves[index] if 0 <= index < len(leaves) else None


class _Verification:
    def __init__(
        self,
        keys: Mapping[str, OKPKey],
        kept: Sequence[SignedHead],
        verdict: Verdict,
        unsealed_seconds: float,
    ) -> None:
        self._keys, self._kept, self._verdict, self._tolerance = keys, kept, verdict, unsealed_seconds
        self._texts: dict[int, str] = {}
        self._head: SignedHead | None = None
        self._skipped_head = False
        self._frontier: Frontier | None = Frontier()
        self._range = _Sealed()
        self._key_rows: list[PartRow] = []
        self._part_rows: dict[Part, list[PartRow]] = {part: [] for part in Part}
        self._position = 0
        self._epoch = 0
        # Names of streams as UTF-8, as in the rows of events.
        self._versions: dict[bytes, int] = {}
        self._streams: dict[bytes, int] = {}
        self._claims: dict[tuple[str, str], str] = {}
        self._claim_rows: dict[tuple[str, str], str] = {}
        self._checkpoints: list[CheckpointLine] = []
        self._lines = 0
        self._end: EndLine | None = None
        self._open: Head | None = None
        self._unsealed: list[tuple[int, bytes]] = []

    def read(self, raw: bytes | bytearray) -> None:
        """Read complete lines of the export."""
        try:
            lines = DECODER.decode_lines(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            for each in BytesIO(raw):
                self._read_line(each)
            return
        at = 0
        while at < len(lines):
            if type(lines[at]) is SealedLine and (count := self._events_as_sealed(lines, at)):
                at += count
            else:
                self._take(lines[at])
                at += 1

    def _read_line(self, raw: bytes) -> None:
        try:
            line = DECODER.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._verdict.add(Kind.EXPORT, f"line {self._lines + 1} of the export cannot be read: {error}")
            self._lines += 1
        else:
            self._take(line)

    def _take(self, line: Line) -> None:
        if self._end is not None or (self._lines == 0) != isinstance(line, ExportLine):
            self._verdict.add(Kind.EXPORT, f"line {self._lines + 1} of the export is out of order")
        self._lines += not isinstance(line, EndLine)
        match line:
            case SealedLine():
                self._event(line.row, None)
            case EventLine():
                self._event(line.row, line.leaf)
            case DeadLine():
                self._dead(line)
            case HeadLine():
                self._close_head()
                self._open_head(line)
            case KeyLine():
                self._key_rows.append(PartRow(line.name, line.digest))
            case ExportLine():
                self._verdict.exported_at = line.exported_at
                if line.format != FORMAT:
                    self._verdict.add(Kind.EXPORT, f"the export has the format {line.format}, not {FORMAT}")
            case _:
                self._take_table(line)

    def _take_table(
        self, line: PartLine | StreamLine | ClaimLine | StrayKeyLine | CheckpointLine | EndLine
    ) -> None:
        match line:
            case PartLine():
                self._part(line)
            case StreamLine():
                self._streams[line.stream.encode()] = line.version
            case ClaimLine():
                self._claim_rows[line.kind, line.value] = line.stream
            case StrayKeyLine():
                what = f"the idempotency key {line.name} belongs to no command of the ledger"
                self._verdict.add(Kind.KEYS, what)
            case CheckpointLine():
                self._checkpoints.append(line)
            case EndLine():
                self._end = line
            case _:
                assert_never(line)

    # Heads

    def _open_head(self, line: HeadLine) -> None:
        verdict, last = self._verdict, self._head
        try:
            signed = verify_head(line.text, self._keys)
        except BadHead as bad:
            verdict.add(Kind.HEAD_SIGNATURE, f"{_named(line.text)} is not valid: {bad}")
            self._skipped_head = True
            return
        head = signed.head
        self._texts[head.number] = signed.text
        due = 1 if last is None else last.head.number + 1
        if head.number != due:
            verdict.add(
                Kind.HEAD_CHAIN,
                f"head {head.number} is where head {due} must be: heads are missing or out of order",
            )
        elif head.previous != (None if last is None else text_digest(last.text)):
            verdict.add(
                Kind.HEAD_CHAIN, f"head {head.number} does not follow the head {due - 1} of the export"
            )
        if last is not None and (head.size < last.head.size or head.epoch < last.head.epoch):
            verdict.add(
                Kind.FORK, f"head {head.number} has fewer positions or a lower epoch than head {due - 1}"
            )
            self._skipped_head = True
            return
        self._head = verdict.head = signed
        self._open = head
        begin = self._sealed
        early = [row for row in self._unsealed if row[0] <= head.size]
        self._unsealed = self._unsealed[len(early) :]
        self._range = _Sealed(begin, head.size, computed=[leaf for _, leaf in early])
        self._prove_leaves(head, line.leaves, is_next=head.number == due)
        self._compare_early(head, early)
        if last is not None:
            self._compare_unchanging(last.head, head)

    @property
    def _sealed(self) -> int:
        """The last position that a valid head covers."""
        return self._range.end

    def _prove_leaves(self, head: Head, stored: bytes, *, is_next: bool) -> None:
        """Take the leaves that are stored with a head as the sealed ones, if the tree with them has the signed root.
        This is impossible if heads before this head are missing (`is_next` is false).
        """
        leaves = [stored[at : at + HASH_BYTES] for at in range(0, len(stored), HASH_BYTES)]
        self._range.stored = leaves
        if self._frontier is None:
            return
        extended = self._frontier.copy()
        extended.extend(leaves, _NO_LEVEL)
        if extended.size == head.size and extended.root.hex() == head.root:
            self._frontier, self._range.leaves = extended, leaves
        elif head.size == self._range.begin:
            what = f"head {head.number} has the size of the head before it, but another root"
            self._verdict.add(Kind.TREE, what)
        elif is_next:
            what = f"the leaves stored with head {head.number} do not have its root"
            self._verdict.add(Kind.HEAD_LEAVES, what)

    def _compare_early(self, head: Head, early: Sequence[tuple[int, bytes]]) -> None:
        """Compare rows that were read before the line of the head that covers them. A valid export has them later."""
        if early and not self._skipped_head:
            what = (
                f"rows that head {head.number} covers come before it in the export: the size that the ledger stores with"
                " a head differs from the signed size, or lines are out of order"
            )
            self._verdict.add(Kind.EXPORT, what, early[0][0])
        for position, leaf in early:
            if self._range.expected(position) not in (None, leaf):
                self._verdict.add(Kind.ROW_CHANGED, "columns of the row are not as sealed", position)

    def _compare_unchanging(self, last: Head, head: Head) -> None:
        since = self._kept[0].head.number if self._kept else head.number
        if head.number <= since:
            return
        for part in _UNCHANGING:
            if last.state.get(part) != head.state.get(part):
                self._verdict.add(
                    _OF_PART[part],
                    f"{part} changed before head {head.number} ({head.sealed_at}); review the change, and keep a newer head",
                )

    def _close_head(self) -> None:
        """Check that all positions of the newest head were read, and its idempotency keys."""
        head, sealed, keys = self._open, self._range, part_digest(self._key_rows)
        self._open, self._key_rows = None, []
        if head is None:
            return
        self._missing(self._position + 1, sealed.end)
        if sealed.end > sealed.begin and not sealed.leaves and self._frontier is not None:
            self._prove_rows(head, sealed)
        if keys != head.state.get(Part.KEYS):
            which = f"positions {sealed.begin + 1} to {sealed.end}"
            self._verdict.add(
                Kind.KEYS, f"the idempotency keys of {which} are not those of head {head.number}"
            )
        self._verdict.sealed = sealed.end

    def _prove_rows(self, head: Head, sealed: _Sealed) -> None:
        """Compare the rows of a head with its root, because its stored leaves do not have this root."""
        assert self._frontier is not None
        self._frontier.extend(sealed.computed, _NO_LEVEL)
        if self._frontier.size != head.size or self._frontier.root.hex() != head.root:
            self._verdict.add(
                Kind.TREE,
                f"rows of positions {sealed.begin + 1} to {sealed.end} differ from those sealed with head {head.number};"
                " it cannot be proved which of them differ, nor that later rows are unchanged",
            )
            self._frontier = None

    # Rows

    def _events_as_sealed(self, lines: Sequence[Line], begin: int) -> int:
        """Read the lines from index `begin` on that are the next sealed events, as they were sealed and in the last
        epoch, and return their number. Any other line is left to `_take`, which finds out what differs.

        Nearly all lines of an export are read here, so this method calls little for each event.
        """
        sealed, position, versions = self._range.leaves, self._position, self._versions
        epoch = self._epoch.to_bytes(4, "big", signed=True)
        first = position - self._range.begin
        if self._lines == 0 or self._end is not None or first < 0:
            return 0
        for line, leaf in zip(islice(lines, begin, None), islice(sealed, first, None), strict=False):
            if type(line) is not SealedLine:
                break
            row = line.row
            if event_leaf(row) != leaf:
                break
            try:
                found, stream, version, event_type, its_epoch = sealed_columns_of(row)
                if found != position + 1 or its_epoch != epoch or versions.get(stream, 0) + 1 != version:
                    break
                if version == 1:
                    stream.decode()  # no later event of the stream has another name
                if event_type in _CLAIMING_TYPES:
                    schema_version, data = sealed_data_of(row, stream, event_type)
                    self._claim(found, stream.decode(), event_type.decode(), schema_version, data)
            except (BadRow, UnicodeDecodeError):
                break
            position = found
            versions[stream] = version
        count = position - self._position
        self._position = position
        self._lines += count
        self._verdict.rows += count
        return count

    def _event(self, row: bytes, stored: bytes | None) -> None:
        """Read an event. `stored` is its stored leaf, None for a `sealed` line, which has the leaf of the head."""
        self._verdict.rows += 1
        leaf = event_leaf(row)
        try:
            event = event_of(row)
        except BadRow as bad:
            self._verdict.add(Kind.ROW_CHANGED, f"after position {self._position}: {bad}")
            return
        if self._follows(event, leaf):
            expected = self._range.expected(event.position)
            if stored is None:
                stored = self._range.stored_at(event.position) or leaf
                if event.position > self._sealed and not self._skipped_head:
                    what = "the export has the event as a `sealed` line, but none of its heads covers the position"
                    self._verdict.add(Kind.EXPORT, what, event.position)
            if expected is not None and leaf != expected:
                how = "was not" if stored == expected else "was changed too, and does not match them"
                if stored == leaf:
                    how = "was computed again"
                what = f"columns of the event ({event.type}) were changed; its stored leaf {how}"
                self._verdict.add(Kind.ROW_CHANGED, what, event.position)
            elif stored != leaf:
                self._stored_leaf(event.position, sealed=expected is not None)
        self._record(event)

    def _record(self, event: Event) -> None:
        """Record the version and the claims of an event."""
        stream = event.stream.encode()
        due = self._versions.get(stream, 0) + 1
        if event.version != due:
            what = f"the event has version {event.version} of stream {event.stream}, where version {due} must follow"
            self._verdict.add(Kind.STREAM_VERSION, what, event.position)
            due = max(event.version, due)
        self._versions[stream] = due
        if event.type.encode() in _CLAIMING_TYPES:
            self._claim(event.position, event.stream, event.type, event.schema_version, event.data)

    def _dead(self, line: DeadLine) -> None:
        self._verdict.rows += 1
        try:
            dead = dead_of(line.row)
        except BadRow as bad:
            self._verdict.add(Kind.ROW_CHANGED, f"after position {self._position}: {bad}")
            return
        leaf = dead_leaf(line.row)
        if not self._follows(dead, leaf):
            return
        expected = self._range.expected(dead.position)
        if expected is not None and leaf != expected:
            what = "the position is recorded as dead, but another row was sealed there"
            self._verdict.add(Kind.NOTED_DEAD, what, dead.position)
        elif line.leaf != leaf:
            self._stored_leaf(dead.position, sealed=expected is not None)

    def _stored_leaf(self, position: int, *, sealed: bool) -> None:
        if sealed:
            self._verdict.add(
                Kind.LEAF_CHANGED, "the stored leaf was changed; the columns are as sealed", position
            )
        else:
            self._verdict.add(Kind.ROW_CHANGED, "the row or its stored leaf was changed", position)

    def _follows(self, row: Event | Dead, leaf: bytes) -> bool:
        """Record the next row. Return False if its position was passed already."""
        position, last = row.position, self._position
        if position <= last:
            what = (
                "a second row at this position"
                if position == last
                else "a row before the first position, or out of order"
            )
            self._verdict.add(Kind.ROW_ADDED, what, position)
            return False
        self._missing(last + 1, min(position - 1, self._sealed))
        self._position = position
        if position > self._sealed:
            self._unsealed.append((position, leaf))
        elif not self._range.leaves:
            self._range.computed.append(leaf)
        if row.epoch < self._epoch:
            what = f"the row has epoch {row.epoch}, but an earlier row has epoch {self._epoch}"
            self._verdict.add(Kind.EPOCH_ORDER, what, position)
        self._epoch = max(self._epoch, row.epoch)
        return True

    def _missing(self, first: int, last: int) -> None:
        """Record that sealed positions have no row, in one difference for adjacent ones."""
        if first <= last:
            which = "" if first == last else f"; the same for all positions to {last}"
            self._verdict.add(Kind.ROW_REMOVED, f"the sealed row was removed{which}", first)
            self._position = last

    def _claim(self, position: int, stream: str, event_type: str, schema_version: int, data: bytes) -> None:
        try:
            takes, frees = claims_of(decode(event_type, schema_version, data.decode()))
        except (UnknownFact, UnreadableFact, UnicodeDecodeError) as error:
            self._verdict.add(Kind.CLAIM, f"the event ({event_type}) cannot be read: {error}", position)
            return
        for claim in frees:
            self._claims.pop(claim, None)
        for claim in takes:
            self._claims[claim] = stream

    # The other tables

    def _part(self, line: PartLine) -> None:
        try:
            self._part_rows[Part(line.part)].append(PartRow(line.name, line.digest))
        except ValueError:
            self._verdict.add(Kind.EXPORT, f"the export contains an unknown part {line.part}")

    def finish(self) -> None:
        """Check that the export is complete, and make the comparisons that need all of its lines: with the kept heads,
        and of the tables beside the ledger with the events.
        """
        self._close_head()
        verdict, end = self._verdict, self._end
        if end is None:
            verdict.add(Kind.EXPORT, "the export is truncated: its last line is missing")
        elif end.lines != self._lines:
            what = f"the export has {self._lines} lines before its last one, which states {end.lines} lines"
            verdict.add(Kind.EXPORT, what)
        if self._unsealed:
            verdict.notes.append(
                f"{len(self._unsealed)} rows after position {self._sealed} are not sealed and not proved"
            )
        self._compare_kept()
        if self._head is None:
            what = "no head of the export is signed with one of the given keys: nothing is proved"
            verdict.add(Kind.HEAD_MISSING, what)
        else:
            self._compare_parts(self._head.head)
        if self._end is not None:
            self._compare_tables(self._end)

    def _compare_kept(self) -> None:
        last = self._head.head.number if self._head else 0
        exported_at = self._verdict.exported_at
        for signed in self._kept:
            head, found = signed.head, self._texts.get(signed.head.number)
            named = f"kept head {head.number} of {head.size} positions ({head.sealed_at})"
            if found is None:
                what = "the ledger was cut or restored" if head.number > last else "the head was removed"
                if head.number > last and exported_at is not None and exported_at <= head.sealed_at:
                    what = f"the head was sealed after the export of {exported_at:%Y-%m-%d %H:%M:%S} UTC; export again"
                self._verdict.add(Kind.HEAD_MISSING, f"{named} is not in the export: {what}")
            elif found != signed.text:
                self._verdict.add(
                    Kind.FORK,
                    f"{named} differs from head {head.number} of the export: the ledger was restored, or the sealer"
                    " signed a fork",
                )
            else:
                self._verdict.kept += 1

    def _compare_parts(self, head: Head) -> None:
        for part, rows in self._part_rows.items():
            if part is Part.KEYS or part_digest(rows) == head.state.get(part):
                continue
            exported_at = self._verdict.exported_at or datetime.max.replace(tzinfo=UTC)
            if part is Part.SESSIONS and exported_at - head.sealed_at <= timedelta(seconds=self._tolerance):
                self._verdict.notes.append(
                    "sessions changed after the newest head; this change is not sealed yet"
                )
            else:
                self._verdict.add(
                    _OF_PART[part],
                    f"{part} differ from those that were sealed with head {head.number} ({head.sealed_at})",
                )

    def _compare_tables(self, end: EndLine) -> None:
        for stream in sorted({*self._versions, *self._streams}):
            stored, found = self._streams.get(stream), self._versions.get(stream)
            if stored != found:
                self._verdict.add(
                    Kind.STREAM_HEAD,
                    f"the events of stream {stream.decode()} end at version {found or 0}; the stored version is {stored or 0}",
                )
        for claim in sorted({*self._claims, *self._claim_rows}):
            row, holder = self._claim_rows.get(claim), self._claims.get(claim)
            if row != holder:
                what = (
                    f"by the events, {holder or 'no stream'} holds the claim on {' '.join(claim)}; stored is"
                    f" {row or 'no stream'}"
                )
                self._verdict.add(Kind.CLAIM, what)
        if end.drawn < self._position:
            self._verdict.add(
                Kind.SEQUENCE, f"the sequence of positions is at {end.drawn}, before the last row"
            )
        for checkpoint in self._checkpoints:
            if checkpoint.position > max(end.drawn, self._position):
                what = (
                    f"the checkpoint {checkpoint.name} is at {checkpoint.position}, after the last position"
                )
                self._verdict.add(Kind.CHECKPOINT, what)


def _named(text: str) -> str:
    """Return how messages name a head that is not valid: by its number, if it can be read."""
    try:
        return f"head {head_of(text).head.number}"
    except BadHead:
        return "a head"
