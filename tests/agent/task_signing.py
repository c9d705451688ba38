"""Sign tasks like the control plane, with a signing key that only the tests use."""

from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from node_agent.slots.fence import FenceEntry
from node_agent.transport.trust import Trust
from tasks.orders import Order
from tasks.sealed import seal
from tasks.signing import Signer, new_private_key

SIGNER = Signer.of_pem(new_private_key())


def sealed(
    task: BaseModel | str, *, signer: Signer = SIGNER, until: datetime | None = None, head: str | None = None
) -> str:
    """Return the signed form of a task or of any other text. The signed form expires at `until`, by default after one
    hour, and carries a head of the ledger.
    """
    text = task if isinstance(task, str) else task.model_dump_json()
    return seal(signer, text, until or datetime.now(UTC) + timedelta(hours=1), head)


def trust() -> Trust:
    """Return the trust store of a node that trusts the signing key of the tests."""
    return Trust([SIGNER.public], [], lambda: datetime.now(UTC))


def held(order: Order) -> FenceEntry:
    """Return the fence entry that a node stores for a slot with `order` as its newest order."""
    return FenceEntry(order=order, signed=sealed(order))
