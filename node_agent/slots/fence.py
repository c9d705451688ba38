"""Fence files: the newest order of each slot, stored on disk as a record of the desired state and to refuse older
orders.

One file per slot holds the newest order, as the signed text in which it was received, and its outcome. The file is
written before the first effect of an order, so a crash leaves either an unchanged host or a file with the order that
was being executed: the next start continues from the file without the control plane. A file outlives its slice, because
older orders must still be refused by the token of a removed slice.

If a signed text was altered, its signature cannot be verified, and its file counts as unreadable.

The marker file `complete` records that the files were once compared with the control plane's desired state. Without the
marker file, or with an unreadable file, a token may be lost, and no order may be taken from the queue until the node
has compared its files with the desired state.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog
from pydantic import Field, ValidationError

from events.values import SlotId, SlotIndex, index_of
from node_agent.runtime.durable import private_folder, replace_file, sync_folder
from tasks.catalogue import is_order
from tasks.failpoints import failpoint
from tasks.fields import IngressId, Wire
from tasks.operations import Operation
from tasks.orders import ApplySlice, Order
from tasks.reading import TaskRefused, read_task, type_in
from tasks.reasons import FenceCode
from tasks.reports import (
    Reason,
    SliceAddress,
    SliceFailed,
    SliceNotRemoved,
    SliceReady,
    SliceRemoved,
    SliceStopped,
)
from tasks.sealed import BadCopy, task_in

log = structlog.get_logger(__name__)

Outcome = SliceReady | SliceFailed | SliceStopped | SliceRemoved | SliceNotRemoved
"""Outcome of an order, in the form in which it is reported."""

_MARK: Final = "complete"


class FenceRecord(Wire):
    """Content of a fence file: the signed text of a slot's newest order, its outcome, and the last reported address.

    `reported` is False until the report of the outcome is certain to be in the spool. `forced` is True once the guest
    is powered off because it did not shut down in time. `applied` is False while the order changes the ingress rules of
    a slice that is ready, and the change is not complete. `lost` lists the slice's ingress rules that were last
    reported as not working; `others` is True if the last report stated that foreign ingress rules lead, or may lead, to
    the slice.
    """

    signed: str
    """Signed text of the order, or of the operation that contains the order."""
    outcome: Annotated[Outcome, Field(discriminator="kind")] | None = None
    reported: bool = True
    address: SliceAddress | None = None
    forced: bool = False
    applied: bool = True
    lost: tuple[IngressId, ...] = ()
    others: bool = False


class FenceEntry(FenceRecord):
    """The stored record of the newest order of a slot, together with this order, parsed from its signed text."""

    order: Order = Field(exclude=True)


def entry_for(held: FenceEntry | None, order: Order, signed: str) -> FenceEntry:
    """Return the fence entry to store for a slot that receives a newer order.

    An order that changes only the ingress rules of a ready slice keeps the slice's outcome: the readiness check applies
    to the start alone, and afterwards the guest's services are the tenant's responsibility.
    """
    fresh = FenceEntry(order=order, signed=signed)
    if held is None or not isinstance(held.outcome, SliceReady) or not _is_same_slice(held.order, order):
        return fresh
    unchanged = {"outcome": held.outcome, "address": held.address, "applied": False}
    return fresh.model_copy(update=unchanged)


def _is_same_slice(one: Order, other: Order) -> bool:
    match one.body, other.body:
        case ApplySlice() as before, ApplySlice() as now:
            same = before.model_copy(update={"ingress": now.ingress}) == now
            return same and one.allocation_id == other.allocation_id
        case _:
            return False


class Refused(Exception):
    """The node refuses to execute an order. `reason` is the reason that it reports."""

    def __init__(self, code: FenceCode, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, Reason(code=code, message=message)


def is_newer_order(held: FenceEntry | None, order: Order) -> bool:
    """Return whether `order` supersedes the slot's stored order. The same order, sent again, does not supersede it.

    Raises `Refused` if the order is older, or has the same token and different content.
    """
    if held is None or order.token > held.order.token:
        return True
    if order.token < held.order.token:
        raise Refused(
            "stale_token",
            f"the order's fence token {_token_text(order)} is older than {_token_text(held.order)} of the slot's stored order",
        )
    if order.content_digest() != held.order.content_digest():
        raise Refused(
            "conflicting_content",
            f"an order with the same fence token {_token_text(order)} and different content was received before",
        )
    return False


def _token_text(order: Order) -> str:
    return f"{order.token.epoch}.{order.token.position}"


def order_in_task(task: bytes) -> Order | None:
    """Return the order in a signed task, or None for an operation without an order. Raises `TaskRefused`."""
    match read_task(task):
        case Order() as order:
            return order
        case Operation(body=body):
            return getattr(body, "order", None)


class _OperationBody(msgspec.Struct):
    order: msgspec.Raw


class _OperationWithOrder(msgspec.Struct):
    """The part of an operation that contains its order, as unparsed JSON."""

    body: _OperationBody


def digest_of(held: FenceEntry) -> str:
    """Return the SHA-256 (hex) of the text of a slot's stored order, exactly as the order was signed.

    The control plane stores the same text, and compares the digests.
    """
    text = task_in(held.signed)
    if not is_order(type_in(text).kind):
        text = bytes(msgspec.json.decode(text, type=_OperationWithOrder).body.order)
    return sha256(text).hexdigest()


class FenceFiles:
    """Folder of fence files. A slot's file must only be written under that slot's lock.

    `recall` verifies a stored signed text and returns its task, even if the task has expired since the text was stored,
    or raises `BadCopy`.
    """

    def __init__(self, folder: Path, recall: Callable[[str], bytes]) -> None:
        self._folder = private_folder(folder)
        self._recall = recall
        self._damaged = False

    def read(self, slot: SlotId) -> FenceEntry | None:
        """Return the fence record of a slot, or None if the slot has no file or an unreadable file; the latter is
        logged.
        """
        path = self._path(index_of(slot))
        try:
            return self._verified(FenceRecord.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError, BadCopy, TaskRefused):
            # Never delete the file: it contains the slot's newest order, and an operator may need to read it.
            log.exception("fence_file_of_slot_unreadable", path=str(path))
            self._damaged = True
            return None

    def _verified(self, record: FenceRecord) -> FenceEntry:
        """Verify and parse the order in a fence record. Raises `BadCopy` or `TaskRefused` if the order is not valid."""
        order = order_in_task(self._recall(record.signed))
        if order is None:
            raise BadCopy("forged", "the signed task in the fence record contains no order")
        return FenceEntry(**dict(record), order=order)

    def write(self, held: FenceEntry, *, durable: bool = True) -> None:
        """Write the fence record of a slot to disk. Raises `OSError`; in that case the order must have no effect."""
        failpoint("agent.fence.before")
        content = held.model_dump_json().encode()
        replace_file(self._path(index_of(held.order.slot_id)), content, durable=durable)
        failpoint("agent.fence.after")

    @property
    def complete(self) -> bool:
        """Whether all fence files are readable and were once compared with the desired state, so that no fence token is
        lost.
        """
        return not self._damaged and (self._folder / _MARK).exists()

    def mark_complete(self) -> None:
        """Record durably that the fence files were compared with the control plane's desired state."""
        self._damaged = False
        (self._folder / _MARK).touch(mode=0o600)
        sync_folder(self._folder)

    def _path(self, index: SlotIndex) -> Path:
        return self._folder / f"slot-{index}.json"
