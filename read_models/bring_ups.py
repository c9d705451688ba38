"""Columns of the rows of nodes and slots about bring-ups: the consecutive failures, and the exclusion from placement.

Both are null where there is none.
"""

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from events.bring_ups import FailedBringUp
from events.facts import Reason
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
    """The columns of a table."""
    return sa.Column("failures", JSONB(none_as_null=True)), sa.Column("excluded", JSONB(none_as_null=True))


def bring_up_values(fact: BringUpFact) -> dict[str, object]:
    """The values that a fact assigns to them."""
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
    """The consecutive failures in the first column."""
    return msgspec.convert(column or (), tuple[FailedBringUp, ...])


def excluded_in(column: Any) -> Reason | None:
    """Why the second column excludes the row's node or slot; None where it does not."""
    return None if column is None else msgspec.convert(column, Reason)
