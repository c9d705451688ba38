"""What each slot was last told, on disk: the fence against late orders, and the node's memory of its own wishes.

One file a slot holds the newest order, as the signed text that it came in, and what came of it. It is written before
the first effect of an order, so a crash leaves either a host untouched or a file that says what the host was becoming:
the next start goes on from there without the control plane. Files outlive their slices: a removed slice's token still
refuses.

A text that was altered is proved by no key: its file counts as one that cannot be read.

The mark `complete` says that the files were once compared with the control plane's wishes. Without it, or with
a file that cannot be read, a token may have been forgotten, and no order may be taken from the queue unfenced.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog
from pydantic import Field, ValidationError

from events.values import SlotId, SlotIndex, index_of
from node_agent.durable import private_folder, replace_file, sync_folder
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
    SliceReady,
    SliceRemains,
    SliceRemoved,
    SliceStopped,
)
from tasks.sealed import BadCopy, task_in

log = structlog.get_logger(__name__)

Outcome = SliceReady | SliceFailed | SliceStopped | SliceRemoved | SliceRemains
"""How an order ended."""

_MARK: Final = "complete"


class Kept(Wire):
    """What a fence file holds: the signed text of a slot's newest order, its outcome once there is one, and the last
    address reported under it.

    `told` is False while the outcome's report may not be in the spool yet. `forced` is True once a guest that was to
    shut down under the order is being cut off. `applied` is False while the order changed the ways in to a slice that
    is ready, and that is not done. `lost` are those of its ways in that were last said not to lead to the slice,
    whether they did before or never; `others` is True where others than its own were last said to, or may.
    """

    signed: str
    """Of the order itself, or of an operation that brought it."""
    outcome: Annotated[Outcome, Field(discriminator="kind")] | None = None
    told: bool = True
    address: SliceAddress | None = None
    forced: bool = False
    applied: bool = True
    lost: tuple[IngressId, ...] = ()
    others: bool = False


class Held(Kept):
    """The same, with the order that the signed text says."""

    order: Order = Field(exclude=True)


def taken_up(held: Held | None, order: Order, signed: str) -> Held:
    """What a slot holds from the moment when it takes an order up.

    An order that differs from the one before in its ways in alone is about the same slice, which stays what it was said
    to be: whether its guest answers was asked when it started, and is the tenant's business since.
    """
    fresh = Held(order=order, signed=signed)
    if held is None or not isinstance(held.outcome, SliceReady) or not _is_same_slice(held.order, order):
        return fresh
    kept = {"outcome": held.outcome, "address": held.address, "applied": False}
    return fresh.model_copy(update=kept)


def _is_same_slice(one: Order, other: Order) -> bool:
    match one.body, other.body:
        case ApplySlice() as before, ApplySlice() as now:
            same = before.model_copy(update={"ingress": now.ingress}) == now
            return same and one.allocation_id == other.allocation_id
        case _:
            return False


class Refused(Exception):
    """An order the node will not touch."""

    def __init__(self, code: FenceCode, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, Reason(code=code, message=message)


def is_news(held: Held | None, order: Order) -> bool:
    """Whether `order` supersedes what the slot holds; an order sent again does not. Raises `Refused`."""
    if held is None or order.token > held.order.token:
        return True
    if order.token < held.order.token:
        raise Refused(
            "stale_token", f"token {_words(order)} is older than {_words(held.order)}, which is held"
        )
    if order.content_digest() != held.order.content_digest():
        raise Refused("conflicting_content", f"token {_words(order)} already came with other content")
    return False


def _words(order: Order) -> str:
    return f"{order.token.epoch}.{order.token.position}"


def proved(task: bytes) -> Order | None:
    """The order that a signed text says its slot should hold. Raises `TaskRefused`."""
    match read_task(task):
        case Order() as order:
            return order
        case Operation(body=body):
            return getattr(body, "wish", None)


class _Brought(msgspec.Struct):
    wish: msgspec.Raw


class _Bringing(msgspec.Struct):
    """An operation, as far as the order in it goes."""

    body: _Brought


def digest_of(held: Held) -> str:
    """SHA-256 (hex) over the text of the held order, as it was signed and as the control plane keeps it."""
    text = task_in(held.signed)
    if not is_order(type_in(text).kind):
        text = bytes(msgspec.json.decode(text, type=_Bringing).body.wish)
    return sha256(text).hexdigest()


class FenceFiles:
    """The folder of fence files. Each slot's file is written by whoever holds that slot's door.

    `recall` gives the task in a signed text that was believed once, or raises `BadCopy`.
    """

    def __init__(self, folder: Path, recall: Callable[[str], bytes]) -> None:
        self._folder = private_folder(folder)
        self._recall = recall
        self._damaged = False

    def read(self, slot: SlotId) -> Held | None:
        path = self._path(index_of(slot))
        try:
            return self._proved(Kept.model_validate_json(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError, BadCopy, TaskRefused):
            # Never deleted: the newest wish is in it, and a person may want to read it.
            log.exception("fence_file_unreadable", path=str(path))
            self._damaged = True
            return None

    def _proved(self, kept: Kept) -> Held:
        """Raises `BadCopy` and `TaskRefused` unless it holds the signed text of an order."""
        order = proved(self._recall(kept.signed))
        if order is None:
            raise BadCopy("forged", "what was signed brought no order")
        return Held(**dict(kept), order=order)

    def write(self, held: Held, *, durable: bool = True) -> None:
        """Raises `OSError`; then the order must have no effect."""
        failpoint("agent.fence.before")
        content = held.model_dump_json().encode()
        replace_file(self._path(index_of(held.order.slot_id)), content, durable=durable)
        failpoint("agent.fence.after")

    @property
    def complete(self) -> bool:
        return not self._damaged and (self._folder / _MARK).exists()

    def mark_complete(self) -> None:
        self._damaged = False
        (self._folder / _MARK).touch(mode=0o600)
        sync_folder(self._folder)

    def _path(self, index: SlotIndex) -> Path:
        return self._folder / f"slot-{index}.json"
