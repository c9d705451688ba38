"""Columns of the tables of nodes and slots about bring-ups (starts of slices): the failed ones since the last success,
and the reason why the node or slot is excluded from placement.

A column is null if there is no failure or no exclusion.
"""

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from events.facts import FailedBringUp, Reason
from events.nodes import NodeBringUpFailed, NodeBringUpSucceeded, NodeExcluded, NodeReadmitted
from events.slots import SlotBringUpFailed, SlotBringUpSucceeded, SlotExcluded, SlotReadmitted

BringUpFact = (
    NodeBringUpFailed
    | NodeBringUpSucceeded
    | NodeExcluded
    | NodeReadmitted
    | SlotBringUpFailed
    | SlotBringUpSucceeded
    | SlotExcluded
    | SlotReadmitted
)


def bring_up_columns() -> tuple[sa.Column[Any], sa.Column[Any]]:
    """Return new column objects `failures` and `excluded`, to add to the table of nodes or of slots."""
    return sa.Column("failures", JSONB(none_as_null=True)), sa.Column("excluded", JSONB(none_as_null=True))


def bring_up_values(fact: BringUpFact) -> dict[str, object]:
    """Return the values that a fact about the start of a slice assigns to the columns `failures` and `excluded`."""
    match fact:
        case NodeBringUpFailed(failures=failures) | SlotBringUpFailed(failures=failures):
            return {"failures": msgspec.to_builtins(failures) or None}
        case NodeBringUpSucceeded() | SlotBringUpSucceeded():
            return {"failures": None}
        case NodeExcluded(reason=reason) | SlotExcluded(reason=reason):
            return {"excluded": msgspec.to_builtins(reason)}
        case NodeReadmitted() | SlotReadmitted():
            return {"failures": None, "excluded": None}


def failures_in(column: Any) -> tuple[FailedBringUp, ...]:
    """Return the failed starts of slices since the last success, as stored in the column `failures`."""
    return msgspec.convert(column or (), tuple[FailedBringUp, ...])


def excluded_in(column: Any) -> Reason | None:
    """Return the reason why a node or slot is excluded from placement, as stored in the column `excluded`; None if it
    is not.
    """
    return None if column is None else msgspec.convert(column, Reason)
