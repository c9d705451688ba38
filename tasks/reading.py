"""From the text of a task to the task: read whole or refused whole, with a code and every reason.

What a type says of itself comes first: its kind, version and length. Only then is the text read as that type, so that a
newer release's task is called `unsupported` and not `malformed`.
"""

from typing import Final
from uuid import UUID

import msgspec
from pydantic import ValidationError

from tasks.catalogue import CATALOGUE, TaskType, is_order
from tasks.operations import Operation
from tasks.orders import Order
from tasks.reasons import RefusalCode

Task = Order | Operation

_MOST_BYTES: Final = max(type_.bounds.payload_bytes for type_ in CATALOGUE.values())
_MOST_REASONS: Final = 20


class TaskRefused(ValueError):
    """A task that will not be touched, for a reason of `tasks.reasons.RefusalCode`."""

    def __init__(self, code: RefusalCode, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class _Body(msgspec.Struct):
    kind: str
    version: int = 1


class _Envelope(msgspec.Struct):
    """What every version of every task has."""

    schema_version: int
    body: _Body


def type_in(text: bytes) -> TaskType:
    """The type of a task, which this release speaks in just this version. Raises `TaskRefused`."""
    if len(text) > _MOST_BYTES:
        raise TaskRefused("oversized", f"it has {len(text)} bytes, and no task has more than {_MOST_BYTES}")
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskRefused("malformed", f"it is no task: {error}") from None
    kind = envelope.body.kind
    if kind not in CATALOGUE:
        raise TaskRefused("unsupported", f"there is no task {kind[:100]!r} here")
    type_ = CATALOGUE[kind]
    spoken = (1, type_.version) if not is_order(kind) else (type_.version, 1)
    if (envelope.schema_version, envelope.body.version) != spoken:
        raise TaskRefused(
            "unsupported",
            f"{kind} came as {envelope.schema_version}.{envelope.body.version}, and {spoken[0]}.{spoken[1]} is spoken here",
        )
    if len(text) > (bound := type_.bounds.payload_bytes):
        raise TaskRefused("oversized", f"it has {len(text)} bytes, and a {kind} has at most {bound}")
    return type_


def read_task(text: bytes) -> Task:
    """Raises `TaskRefused`: `malformed`, `oversized` or `unsupported`."""
    kind = type_in(text).kind
    form: type[Order] | type[Operation] = Order if is_order(kind) else Operation
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)
        reasons = (
            f"{'.'.join(map(str, each['loc'])) or kind}: {each['msg']}" for each in wrong[:_MOST_REASONS]
        )
        raise TaskRefused("malformed", "; ".join(reasons)) from None


def id_of(task: Task) -> UUID:
    """The id under which it is queued."""
    return task.order_id if isinstance(task, Order) else task.operation_id
