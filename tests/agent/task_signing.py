"""Sign tasks like the control plane, with a key of these tests."""

from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from node_agent.slots.fence import FenceEntry
from node_agent.transport.trust import Trust
from tasks.orders import Order
from tasks.sealed import seal
from tasks.signing import Signer, new_private_key

SIGNER = Signer.of_pem(new_private_key())


def sealed(task: BaseModel | str, *, signer: Signer = SIGNER, until: datetime | None = None) -> str:
    """Return the signed text of a task or of any other text; it expires after one hour unless `until` is given."""
    text = task if isinstance(task, str) else task.model_dump_json()
    return seal(signer, text, until or datetime.now(UTC) + timedelta(hours=1))


def trust() -> Trust:
    """Return the trust store of a node that has received the key of these tests."""
    return Trust([SIGNER.public], [], lambda: datetime.now(UTC))


def held(order: Order) -> FenceEntry:
    """Return the fence entry of a slot that has received only this order."""
    return FenceEntry(order=order, signed=sealed(order))
