"""What each slot was last told, on disk: the fence against late orders, and the node's memory of its own wishes.

One file a slot holds the newest order, whole, and what came of it. It is written before the first effect of
an order, so a crash leaves either a host untouched or a file that says what the host was becoming: the next start
goes on from there without the control plane. Files outlive their slices: a removed slice's token still refuses.

The mark `complete` says that the files were once compared with the control plane's wishes. Without it, or with
a file that cannot be read, a token may have been forgotten, and no order may be taken from the queue unfenced.
"""

from pathlib import Path
from typing import Annotated, Final

import structlog
from pydantic import Field, ValidationError

from events.values import SlotId, SlotIndex, index_of
from node_agent.durable import private_folder, replace_file, sync_folder
from tasks.failpoints import failpoint
from tasks.fields import Wire
from tasks.orders import Order
from tasks.reports import Reason, SliceAddress, SliceFailed, SliceReady, SliceRemains, SliceRemoved

log = structlog.get_logger(__name__)

Outcome = SliceReady | SliceFailed | SliceRemoved | SliceRemains
"""How an order ended."""

_MARK: Final = "complete"


class Held(Wire):
    """A slot's newest order, its outcome once there is one, and the last address reported under it.

    `told` is False while the outcome's report may not be in the spool yet.
    """

    order: Order
    outcome: Annotated[Outcome, Field(discriminator="kind")] | None = None
    told: bool = True
    address: SliceAddress | None = None


class Refused(Exception):
    """An order the node will not touch."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(code=code, message=message)


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


class FenceFiles:
    """The folder of fence files. Each slot's file is written by whoever holds that slot's door."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)
        self._damaged = False

    def read(self, slot: SlotId) -> Held | None:
        path = self._path(index_of(slot))
        try:
            return Held.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            # Never deleted: the newest wish is in it, and a person may want to read it.
            log.exception("fence_file_unreadable", path=str(path))
            self._damaged = True
            return None

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
