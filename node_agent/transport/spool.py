"""Spool of a node's reports on disk: reports are appended, sent in order, and deleted after their acknowledgement.

`reports.jsonl` holds one report per line and is flushed before `append` returns. `head.json` contains the spool's
incarnation and the last acknowledged sequence. After a crash, the last line may be incomplete: it is cut off at the
next start, because its `append` never returned. `head.json` may be old: some reports are then sent twice, and the
control plane records each report once. A complete line that cannot be read comes from a damaged disk or another
version: the other reports are sent, and a copy of the file is kept.

The sequence numbers of reports count from 1 without gaps within an incarnation. A new incarnation starts with a new
disk, when a report between two other reports was lost, and when the control plane requires reports that were already
deleted (because the control plane was restored from a backup).
"""

import os
import shutil
import threading
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, islice
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import structlog
from pydantic import ValidationError

from events.values import new_uuid
from node_agent.runtime.durable import private_folder, replace_file, sync_folder
from tasks.failpoints import failpoint
from tasks.fields import Wire
from tasks.reports import Report, ReportBatch, ReportBody

log = structlog.get_logger(__name__)

MAX_BATCH: Final = 100
BATCH_BYTES: Final = 1024 * 1024
_COMPACT_BYTES: Final = 256 * 1024


class _Head(Wire):
    incarnation: UUID
    taken: int = 0


class _Numbered(msgspec.Struct, frozen=True):
    """The sequence number of a spooled report, decoded without the other fields of the report."""

    sequence: int


_NUMBERED: Final = msgspec.json.Decoder(_Numbered)


class Spool:
    """Spool of a node's reports. Thread-safe. The node accepts no new order while `limit` reports wait."""

    def __init__(self, folder: Path, *, limit: int = 10_000) -> None:
        self._folder = private_folder(folder)
        self._limit = limit
        self._lock = threading.Lock()
        self._head = self._read_head()
        self._waiting = deque(self._recover())
        self._last = self._waiting[-1].sequence if self._waiting else self._head.taken
        self._file = self._open()
        sync_folder(self._folder)
        if self._last - self._head.taken != len(self._waiting):
            # A sequence is missing. Intake would wait for it permanently.
            self.start_new_incarnation()

    def append(
        self, body: ReportBody, *, observed_at: datetime, order_id: UUID | None, trace_context: str | None
    ) -> Report:
        """Store a report until the control plane acknowledges it. Raises `OSError` if the report cannot be stored."""
        with self._lock:
            report = Report(
                sequence=self._last + 1,
                observed_at=observed_at,
                order_id=order_id,
                trace_context=trace_context,
                body=body,
            )
            failpoint("agent.report.before")
            self._write(report.model_dump_json().encode() + b"\n")
            failpoint("agent.report.after")
            self._last = report.sequence
            self._waiting.append(report)
            return report

    def oldest(self) -> ReportBatch | None:
        """Return a batch of the oldest waiting reports, or None if no report waits."""
        with self._lock:
            if not self._waiting:
                return None
            return ReportBatch(
                incarnation=self._head.incarnation, reports=_batch_of(list(islice(self._waiting, MAX_BATCH)))
            )

    def forget(self, through: int) -> None:
        """Delete the reports up to sequence `through`, which the control plane has acknowledged."""
        with self._lock:
            if through <= self._head.taken:
                return
            while self._waiting and self._waiting[0].sequence <= through:
                self._waiting.popleft()
            self._head = _Head(incarnation=self._head.incarnation, taken=min(through, self._last))
            self._store_head(self._head, durable=False)
            if os.fstat(self._file).st_size > _COMPACT_BYTES:
                self._compact()

    def start_new_incarnation(self) -> None:
        """Start a new incarnation of the spool, and number the waiting reports from 1. Raises `OSError`."""
        with self._lock:
            # Delete acknowledged reports from the file first: under a new head they would all seem to wait.
            self._compact()
            self._waiting = deque(
                report.model_copy(update={"sequence": sequence})
                for sequence, report in enumerate(self._waiting, 1)
            )
            self._last = len(self._waiting)
            self._head = _Head(incarnation=new_uuid())
            # The head is written before the lines: after a crash in between, the new head does not match the old
            # sequences, and the next start renumbers again. In the opposite order, the old head would mark the
            # renumbered reports as acknowledged.
            self._compact()

    @property
    def waiting(self) -> int:
        """Number of spooled reports that the control plane has not acknowledged yet."""
        with self._lock:
            return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether so many reports wait in the spool that the node must accept no new order."""
        return self.waiting >= self._limit

    @property
    def _lines(self) -> Path:
        return self._folder / "reports.jsonl"

    @property
    def _damaged(self) -> Path:
        return self._folder / "reports.damaged"

    def _read_head(self) -> _Head:
        try:
            return _Head.model_validate_json((self._folder / "head.json").read_bytes())
        except FileNotFoundError:
            head = _Head(incarnation=new_uuid())
        except ValidationError as error:
            log.warning("report_spool_position_unreadable", error=str(error))
            head = _Head(incarnation=new_uuid())
        self._store_head(head, durable=True)
        return head

    def _recover(self) -> list[Report]:
        """Return the waiting reports in `reports.jsonl`, and cut off a last line that a crash left incomplete."""
        if not self._lines.exists():
            return []
        *lines, torn = self._lines.read_bytes().split(b"\n")
        if torn:
            log.warning("incomplete_last_report_cut_from_spool", complete_lines=len(lines))
            os.truncate(self._lines, self._lines.stat().st_size - len(torn))
        waiting, lost = list[Report](), 0
        for line in lines:
            try:
                # Most lines are acknowledged already, and decoding a whole report takes ten times as long.
                if _NUMBERED.decode(line).sequence > self._head.taken:
                    waiting.append(Report.model_validate_json(line))
            except (ValidationError, msgspec.DecodeError):
                lost += 1
        if lost:
            log.error("reports_lost_in_damaged_spool", count=lost, copy_of_spool=str(self._damaged))
            shutil.copyfile(self._lines, self._damaged)
        return waiting

    def _write(self, line: bytes) -> None:
        size = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError:
            # An incomplete line in the middle of the file would make the next report unreadable too.
            os.ftruncate(self._file, size)
            raise

    def _store_head(self, head: _Head, *, durable: bool) -> None:
        failpoint("agent.head.before")
        replace_file(self._folder / "head.json", head.model_dump_json().encode(), durable=durable)
        failpoint("agent.head.after")

    def _compact(self) -> None:
        # The head is flushed first: once the lines are deleted, only the head contains the next sequence.
        self._store_head(self._head, durable=True)
        failpoint("agent.compact.between")
        content = b"".join(report.model_dump_json().encode() + b"\n" for report in self._waiting)
        try:
            replace_file(self._lines, content)
        finally:
            # Reopen also if only the flush of the folder failed: the old file has no name any more, and reports
            # written to it would be lost.
            old, self._file = self._file, self._open()
            os.close(old)
        failpoint("agent.compact.after")

    def _open(self) -> int:
        return os.open(self._lines, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _batch_of(reports: Sequence[Report]) -> tuple[Report, ...]:
    """Return the reports that fit in one batch: the first, whatever its size, and as many following reports as fit."""
    sizes = accumulate(len(report.model_dump_json().encode()) for report in reports)
    return tuple(reports[: max(1, sum(size <= BATCH_BYTES for size in sizes))])
