"""Tasks signed as the control plane signs them, by a key of these tests."""

from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from node_agent.fence import Held
from node_agent.trust import Trust
from tasks.orders import Order
from tasks.sealed import seal
from tasks.signing import Signer, new_private_key

SIGNER = Signer.of_pem(new_private_key())


def sealed(task: BaseModel | str, *, signer: Signer = SIGNER, until: datetime | None = None) -> str:
    """The signed text of a task, or of what pretends to be one; good for an hour unless told otherwise."""
    text = task if isinstance(task, str) else task.model_dump_json()
    return seal(signer, text, until or datetime.now(UTC) + timedelta(hours=1))


def trust() -> Trust:
    """A node's, which was told of this key."""
    return Trust([SIGNER.public], [], lambda: datetime.now(UTC))


def held(order: Order) -> Held:
    """What a slot holds that was told this and nothing else."""
    return Held(order=order, signed=sealed(order))
