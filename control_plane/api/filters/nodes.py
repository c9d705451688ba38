"""Filters of the list of nodes: by state, name, cordon, exclusion and open drift.

A list of the present is filtered by the database. A list of the past reads the nodes with the wanted names and omits
those with views that do not match (`scanning`).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final, Literal, get_args

import sqlalchemy as sa
from fastapi import Depends, Query
from pydantic import AfterValidator

from control_plane.api.filters.scanning import MAX_ROWS_READ
from control_plane.api.views.views import NodeDetail, NodeView
from control_plane.decisions.refusals import Malformed, Objection
from control_plane.work.live_nodes import DRIFTS, state
from events.values import InvalidValue
from read_models.nodes import node

RecordedState = Literal["registered", "enrolled", "revoked"]
"""States that follow from events. A list of the past has no others, because heartbeats are not events."""
State = Literal[RecordedState, "resyncing", "unreachable"]
MAX_ROWS_READ_WITH_SLOTS: Final = 100
"""Maximum number of nodes that one request with `at` and a filter by drift reads, because it reads their slots too."""
_NAME_PREFIX: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")


def _valid_name_prefix(raw: str | None) -> str | None:
    if raw is not None and not _NAME_PREFIX.fullmatch(raw):
        valid = "use 1 to 31 characters of a-z, 0-9 and '-', starting with a letter"
        raise InvalidValue("beginning of a node id", raw[:64], valid)
    return raw


States = Annotated[
    list[State],
    Query(
        default_factory=list,
        alias="state",
        max_length=10,
        description=f"List only nodes in these states; with `at` only {', '.join(get_args(RecordedState))}.",
    ),
]
NamePrefix = Annotated[
    str | None,
    Query(max_length=64, description="List only nodes with an id that begins with this text."),
    AfterValidator(_valid_name_prefix),
]
Cordoned = Annotated[
    bool | None,
    Query(description="true: list only nodes that are cordoned. false: list only nodes that are not."),
]
Excluded = Annotated[
    bool | None,
    Query(
        description="true: list only nodes that are excluded from placement after failed bring-ups. false: list only others."
    ),
]
Drift = Annotated[
    bool | None,
    Query(
        description="true: list only nodes with open drift, of the node or of one of its slots. false: list only nodes without."
    ),
]


@dataclass(frozen=True, slots=True)
class WantedNodes:
    """The filters of one list of nodes. A filter that is empty or None matches every node."""

    states: frozenset[str]
    name_prefix: str | None
    cordoned: bool | None
    excluded: bool | None
    drift: bool | None

    def conditions(self, unreachable_after: timedelta) -> Iterator[sa.ColumnElement[bool]]:
        """Yield the filters as conditions on the rows of `live_nodes`."""
        if self.states:
            yield state(unreachable_after).in_(sorted(self.states))
        if self.name_prefix is not None:
            yield node.c.node_id.startswith(self.name_prefix, autoescape=True)
        for wanted, condition in (
            (self.cordoned, node.c.cordoned.is_not(None)),
            (self.excluded, node.c.excluded.is_not(None)),
            (self.drift, DRIFTS),
        ):
            if wanted is not None:
                yield condition if wanted else sa.not_(condition)

    @property
    def condition(self) -> Callable[[NodeView], bool] | None:
        """The condition for all filters except `name_prefix`, which the query of a list of the past applies; None if no
        other filter is set. With a filter by drift, the views must be of the type `NodeDetail`.
        """
        unfiltered = (self.cordoned, self.excluded, self.drift) == (None, None, None) and not self.states
        return None if unfiltered else self._matches

    def _matches(self, view: NodeView) -> bool:
        return (
            (not self.states or view.state in self.states)
            and self.cordoned in (None, view.cordoned is not None)
            and self.excluded in (None, view.excluded is not None)
            and (self.drift is None or self.drift == _drifts(view))
        )

    @property
    def max_rows_read(self) -> int:
        """Maximum number of nodes that one request with `at` reads."""
        return MAX_ROWS_READ if self.drift is None else MAX_ROWS_READ_WITH_SLOTS

    def refuse_live_states(self) -> None:
        """Check that a list of the past is filtered by recorded states only. Raises `Malformed`."""
        live = sorted(self.states.difference(get_args(RecordedState)))
        offered = f"choose from {', '.join(get_args(RecordedState))}, or leave out 'at'"
        reason = (
            "a list of the past cannot be filtered by state {!r}, because heartbeats are not recorded; {}"
        )
        if live:
            raise Malformed(
                *(
                    Objection("invalid_value", reason.format(each, offered), parameter="state")
                    for each in live
                )
            )


def _drifts(view: NodeView) -> bool:
    assert isinstance(view, NodeDetail), "a filter by drift needs views that contain the drift of the slots"
    return view.state != "revoked" and bool(view.drift or view.slot_drift)


def _wanted(
    states: States,
    name: NamePrefix = None,
    cordoned: Cordoned = None,
    excluded: Excluded = None,
    drift: Drift = None,
) -> WantedNodes:
    return WantedNodes(frozenset(states), name, cordoned, excluded, drift)


Wanted = Annotated[WantedNodes, Depends(_wanted)]
