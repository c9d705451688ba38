"""Parsing of tasks: a task is accepted as a whole or refused as a whole, with a code and every reason.

Kind, version and length are checked first. Only then is the text parsed as a task of that type, so that the task of a
newer release is refused as `unsupported` and not as `malformed`.
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
    """Refusal of a task, which has no effect on the host, with a code of `tasks.reasons.RefusalCode`."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class _Body(msgspec.Struct):
    kind: str
    version: int = 1


class _Envelope(msgspec.Struct):
    """The fields that every version of every task type has in its JSON."""

    schema_version: int
    body: _Body


def type_in(text: bytes) -> TaskType:
    """Return the type of the task in a JSON text if this release supports its version. Raises `TaskRefused`."""
    if len(text) > _MOST_BYTES:
        raise TaskRefused(
            "oversized", f"the task has {len(text)} bytes; the maximum for any task is {_MOST_BYTES}"
        )
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskRefused("malformed", f"the JSON text is not a valid task: {error}") from None
    kind = envelope.body.kind
    if kind not in CATALOGUE:
        raise TaskRefused(
            "unsupported", f"unknown task kind {kind[:100]!r}; upgrade the agent or correct the kind"
        )
    type_ = CATALOGUE[kind]
    supported = (1, type_.version) if not is_order(kind) else (type_.version, 1)
    if (envelope.schema_version, envelope.body.version) != supported:
        raise TaskRefused(
            "unsupported",
            f"the task of kind {kind} has version {envelope.schema_version}.{envelope.body.version}; this release supports version "
            f"{supported[0]}.{supported[1]}",
        )
    if len(text) > (bound := type_.bounds.payload_bytes):
        raise TaskRefused(
            "oversized", f"the task has {len(text)} bytes; the maximum for tasks of kind {kind} is {bound}"
        )
    return type_


def read_task(text: bytes) -> Task:
    """Parse a task from its JSON text and validate it. Raises `TaskRefused` with `malformed`, `oversized` or
    `unsupported`.
    """
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
    """Return the id under which a task is queued: its order id or operation id."""
    return task.order_id if isinstance(task, Order) else task.operation_id
