"""The newest head of the ledger that this node holds, as a witness outside the database (LED-7).

Every signed order carries the newest head. The node holds one head on its disk, and replaces it only by a head that the
sealer signed and that continues it. Two heads of different sizes need a consistency proof (RFC 6962 section 2.1.2),
which the node requests from the control plane with its session: orders stay small, and the control plane need not
know which head each node holds. The proof is verified here: a control plane that changed its history cannot give one.

A head that contradicts the held one is refused and reported, once for each held head and code, with both texts as
evidence. Orders are carried out regardless of their heads. A ledger that was restored from a backup goes on in a higher
epoch: its first head is reported, too, and then held; the previous head stays in the file.

A new head is checked at most every `head_seconds` of the settings, because an active ledger has a new one every second.
"""

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog
from pydantic import ValidationError

from events.ledger.tree import verifies_consistency
from node_agent.runtime.backoff import Backoff
from node_agent.runtime.durable import private_folder, replace_file
from node_agent.runtime.timetable import Timetable
from node_agent.transport.client import ControlPlane, ControlPlaneUnavailable, RequestRejected
from tasks.agent_api import HeadSizes
from tasks.failpoints import failpoint
from tasks.fields import Wire, line
from tasks.heads import MAX_HEAD, HeldHead, SizesToProve, UnreadableHead, difference, stored_head
from tasks.reasons import HeadCode
from tasks.reports import HeadRefused, Reason
from tasks.signing import BadSignature

log = structlog.get_logger(__name__)
_KEPT: Final = 8


class _Record(Wire):
    """Content of the file in which the node stores a head of the ledger: the held head, the codes with which other
    heads were refused and reported since, and the last heads that were held in earlier epochs when a head of a later
    epoch contradicted them, the newest first.
    """

    held: str | None = None
    refused: tuple[str, ...] = ()
    former: tuple[str, ...] = ()


class SealedHeads:
    """The newest head of the ledger that this node holds, and the check of each newer head. Thread-safe.

    `verify` returns the head in a text that is signed with a trusted key of the sealer, None if the node has no such
    key, and raises `BadSignature` or `UnreadableHead`. `report` sends a report to the control plane.
    """

    def __init__(
        self,
        folder: Path,
        control_plane: ControlPlane,
        verify: Callable[[str], HeldHead | None],
        report: Callable[[HeadRefused], None],
        timetable: Timetable,
        *,
        seconds: float,
    ) -> None:
        self._folder = private_folder(folder)
        self._file = self._folder / "held.json"
        self._control_plane, self._verify, self._report = control_plane, verify, report
        self._seconds = seconds
        self._lock = threading.Lock()
        self._record = self._read()
        self._received: str | None = None
        self._not_before = 0.0
        self._backoff = Backoff(cap=60.0)
        self._entry = timetable.enter(self._check, name="sealed_heads", after=None)

    @property
    def held(self) -> str | None:
        """The signed text of the ledger head that the node has stored, or None."""
        return self._record.held

    def receive(self, text: str) -> None:
        """Accept the signed head of the ledger that came with an order. It is checked later, in a thread of the
        timetable.
        """
        with self._lock:
            if text in (self._received, self._record.held):
                return
            self._received = text
        self._entry.wake(max(0.0, self._not_before - time.monotonic()))

    def stop(self, timeout: float) -> None:
        """Check no further heads; wait up to `timeout` seconds for a check in progress."""
        self._entry.cancel(timeout)

    def _check(self) -> float | None:
        with self._lock:
            text = self._received
        if text is None:
            return None
        self._not_before = time.monotonic() + self._seconds
        try:
            self._take(text)
        except (ControlPlaneUnavailable, RequestRejected, OSError) as error:
            log.warning("sealed_head_not_checked", reason=str(error))
            return self._backoff.next()
        self._backoff.reset()
        with self._lock:
            if self._received == text:
                self._received = None
                return None
        return self._seconds

    def _take(self, text: str) -> None:
        """Check a signed head of the ledger, and store it as the held head or refuse it. Raises
        `ControlPlaneUnavailable`, `RequestRejected` and `OSError`.
        """
        held = self._record.held
        try:
            head = self._verify(text)
        except (BadSignature, UnreadableHead) as error:
            self._refuse(text, "head_not_trusted", str(error))
            return
        if head is None:
            return
        objection = None if held is None else self._objection(held, text)
        if objection is not None:
            self._refuse(text, "head_inconsistent", objection)
        if held is None or _replaces(stored_head(held), head, consistent=objection is None):
            former = self._record.former
            if held is not None and objection is not None:
                former = (held, *former)[:_KEPT]
            self._write(_Record(held=text, former=former))
            log.info("newer_sealed_head_stored", number=head.number, size=head.size)

    def _objection(self, held: str, text: str) -> str | None:
        """Return the reason why two signed heads belong to different histories of the ledger, or None if the heads are
        consistent.
        """
        found = difference(held, text)
        if not isinstance(found, SizesToProve):
            return found
        try:
            proof = self._control_plane.consistency(HeadSizes(first=found.first, second=found.second))
        except RequestRejected as refused:
            if refused.status != HTTPStatus.CONFLICT:
                raise
            return f"the control plane has no proof that {stored_head(text)} is consistent with the held {stored_head(held)}: {refused.reason}"
        hashes = [bytes.fromhex(each) for each in proof.hashes]
        if verifies_consistency(found.first, found.first_root, found.second, found.second_root, hashes):
            return None
        return f"the proof does not show that {stored_head(text)} is consistent with the held {stored_head(held)}"

    def _refuse(self, text: str, code: HeadCode, objection: str) -> None:
        log.error("sealed_head_from_control_plane_failed_check", code=code, reason=objection)
        record = self._record
        if code in record.refused:
            return
        # Report first: after a crash between the two lines, the head is reported again.
        reason = Reason(code=code, message=line(objection))
        self._report(HeadRefused(reason=reason, held=record.held, refused=text[:MAX_HEAD]))
        self._write(record.model_copy(update={"refused": (*record.refused, code)}))

    def _write(self, record: _Record) -> None:
        failpoint("agent.sealed_head.before")
        replace_file(self._file, record.model_dump_json().encode())
        failpoint("agent.sealed_head.after")
        self._record = record

    def _read(self) -> _Record:
        try:
            record = _Record.model_validate_json(self._file.read_bytes())
            if record.held is not None:
                stored_head(record.held)
        except FileNotFoundError:
            return _Record()
        except (OSError, ValidationError, UnreadableHead):
            log.exception("stored_sealed_head_unreadable", path=str(self._file))
            return _Record()
        return record


def _replaces(held: HeldHead, head: HeldHead, *, consistent: bool) -> bool:
    """Return whether a new head replaces the held head: a consistent head must have a higher number, because a late
    copy of an order may carry an older head; a head that is not consistent must be of a later epoch.
    """
    return head.number > held.number if consistent else head.epoch > held.epoch
