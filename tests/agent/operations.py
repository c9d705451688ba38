"""Operations for slots of `lab-a`, in the form in which the control plane sends them."""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID, uuid5

from tasks.operations import (
    AddressReport,
    DriftReport,
    IngressApply,
    IngressRemove,
    LeaseApply,
    MachineInspect,
    NodeVerify,
    Operation,
    OperationBody,
    OperationCancel,
    PortReconcile,
    ReadinessPoll,
    SlotInspection,
    SlotRepair,
    VnicAttach,
)
from tasks.orders import Order
from tests.agent.orders import NODE, apply, remove

_NAMES: Final = UUID("0190f7a0-0000-7000-8000-000000000001")

REPAIRS: Final = (VnicAttach, PortReconcile, LeaseApply, IngressApply)
INSPECTIONS: Final = (AddressReport, ReadinessPoll, DriftReport, MachineInspect)


def operation(body: OperationBody, attempt: int = 1, node: str = NODE) -> Operation:
    """Return an operation with an id derived from its body and its attempt number."""
    return Operation.model_validate(
        {
            "operation_id": uuid5(_NAMES, f"{body.model_dump_json()} {attempt}"),
            "task_id": uuid5(_NAMES, body.model_dump_json()),
            "node_id": node,
            "issued_at": datetime(2025, 1, 1, tzinfo=UTC),
            "correlation_id": _NAMES,
            "causation_id": _NAMES,
            "body": body,
        }
    )


def verify(attempt: int = 1) -> Operation:
    return operation(NodeVerify(), attempt)


def on_slot(
    kind: type[SlotInspection | SlotRepair], order: Order | None = None, attempt: int = 1
) -> Operation:
    """Return an operation of this kind on a slot with the desired state `order`.

    The default is a removal order for `IngressRemove`, and an apply order for all other kinds.
    """
    desired = order or (remove() if kind is IngressRemove else apply())
    return operation(kind(order=desired), attempt)


def cancel(target: Operation) -> Operation:
    return operation(OperationCancel(target=target.operation_id))
