"""Reports on disk until the control plane has them: appended, sent in order, forgotten when acknowledged.

`reports.jsonl` holds one report a line and is flushed before `append` returns. `head.json` names the spool's
incarnation and what was taken. A crash leaves at most a torn last line, which was never promised to anybody and is
cut off at the next start, or a head that is behind: then some reports are sent twice, and intake takes each once.
A whole line that cannot be read is the disk's doing, or another version's: the rest is sent, and the file is kept.

Sequences count from 1 without gaps for as long as the incarnation lives. A new incarnation begins with a new disk,
when a report in between was lost, and when the control plane wants reports again that were already forgotten (it
was restored from a backup).
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
from node_agent.durable import private_folder, replace_file, sync_folder
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
    """Of a report, only where it stands."""

    sequence: int


_NUMBERED: Final = msgspec.json.Decoder(_Numbered)


class Spool:
    """Thread-safe. `limit` is how many reports may wait before the node takes no new order."""

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
            # Intake would wait for what is missing for ever.
            self.begin_anew()

    def append(
        self, body: ReportBody, *, observed_at: datetime, order_id: UUID | None, trace_context: str | None
    ) -> Report:
        """Keep a report until it is taken. Raises `OSError` when the disk refuses; then there is no report."""
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
        """The next reports to send."""
        with self._lock:
            if not self._waiting:
                return None
            return ReportBatch(
                incarnation=self._head.incarnation, reports=_together(list(islice(self._waiting, MAX_BATCH)))
            )

    def forget(self, through: int) -> None:
        """Everything up to `through` is in the ledger."""
        with self._lock:
            if through <= self._head.taken:
                return
            while self._waiting and self._waiting[0].sequence <= through:
                self._waiting.popleft()
            self._head = _Head(incarnation=self._head.incarnation, taken=min(through, self._last))
            self._store_head(self._head, durable=False)
            if os.fstat(self._file).st_size > _COMPACT_BYTES:
                self._compact()

    def begin_anew(self) -> None:
        """Give what still waits a new incarnation, counted from 1. Raises `OSError`."""
        with self._lock:
            # What was taken leaves the file first: under a new head it would all seem to wait again.
            self._compact()
            self._waiting = deque(
                report.model_copy(update={"sequence": sequence})
                for sequence, report in enumerate(self._waiting, 1)
            )
            self._last = len(self._waiting)
            self._head = _Head(incarnation=new_uuid())
            # A crash inside leaves the new head over lines with old numbers, and the next start comes here again.
            # The other way round the old head would pass the renumbered lines off as taken.
            self._compact()

    @property
    def waiting(self) -> int:
        with self._lock:
            return len(self._waiting)

    @property
    def full(self) -> bool:
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
            log.warning("spool_head_unreadable", error=str(error))
            head = _Head(incarnation=new_uuid())
        self._store_head(head, durable=True)
        return head

    def _recover(self) -> list[Report]:
        """What waits in the file's whole lines; what a crash tore off the last one is cut away."""
        if not self._lines.exists():
            return []
        *lines, torn = self._lines.read_bytes().split(b"\n")
        if torn:
            log.warning("spool_cut", kept=len(lines))
            os.truncate(self._lines, self._lines.stat().st_size - len(torn))
        waiting, lost = list[Report](), 0
        for line in lines:
            try:
                # Most of the lines were taken, and to read a report whole takes ten times as long.
                if _NUMBERED.decode(line).sequence > self._head.taken:
                    waiting.append(Report.model_validate_json(line))
            except (ValidationError, msgspec.DecodeError):
                lost += 1
        if lost:
            log.error("spool_damaged", lost=lost, kept=str(self._damaged))
            shutil.copyfile(self._lines, self._damaged)
        return waiting

    def _write(self, line: bytes) -> None:
        size = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError:
            # Half a line in the middle of the file would hide every later report from the next start.
            os.ftruncate(self._file, size)
            raise

    def _store_head(self, head: _Head, *, durable: bool) -> None:
        failpoint("agent.head.before")
        replace_file(self._folder / "head.json", head.model_dump_json().encode(), durable=durable)
        failpoint("agent.head.after")

    def _compact(self) -> None:
        # The head is flushed first: with the lines gone it alone knows which sequence comes next.
        self._store_head(self._head, durable=True)
        failpoint("agent.compact.between")
        content = b"".join(report.model_dump_json().encode() + b"\n" for report in self._waiting)
        try:
            replace_file(self._lines, content)
        finally:
            # Also when only the flush of the folder failed: the old file has no name any more, and would swallow
            # reports.
            old, self._file = self._file, self._open()
            os.close(old)
        failpoint("agent.compact.after")

    def _open(self) -> int:
        return os.open(self._lines, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _together(reports: Sequence[Report]) -> tuple[Report, ...]:
    """Those that are sent at once: the first, however large, and what is small beside it."""
    sizes = accumulate(len(report.model_dump_json().encode()) for report in reports)
    return tuple(reports[: max(1, sum(size <= BATCH_BYTES for size in sizes))])
