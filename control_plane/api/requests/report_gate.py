"""Refusal of a throttled node's requests before they reach the database, in one process.

Each node has a report budget, which Postgres stores. When the budget refuses a report, this gate refuses the node's
requests until it may retry. The gate also bounds the concurrent report requests of one node in this process. A node
that sends as fast as it can therefore costs one credential look-up per request, and cannot occupy the database
connections of other requests.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from control_plane.decisions.refusals import Objection, Throttled
from events.values import NodeId

IN_PROGRESS: Final = 4
"""Maximum number of concurrent report requests of one node. An agent sends one at a time, and may send another after a
timeout.
"""
_REMEMBERED_SECONDS: Final = 120.0
_MANY: Final = 1024


@dataclass(slots=True)
class _Refusal:
    """The last refusal of a node's report by its report budget, and the number of requests that were refused since."""

    at: float
    until: float
    since: int = 0


class ReportGate:
    """Refuses report requests of throttled nodes, in one process. Not thread-safe: used by one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._in_progress = Counter[NodeId]()
        self._refusals: dict[NodeId, _Refusal] = {}

    @contextmanager
    def entered(self, node: NodeId) -> Iterator[None]:
        """Count a report request of the node as in progress while the `with` block runs. Raises `Throttled`."""
        refusal = self._refusals.get(node)
        left = 0.0 if refusal is None else refusal.until - self._now()
        if left > 0 or self._in_progress[node] >= IN_PROGRESS:
            if refusal is not None:
                refusal.since += 1
            wait = max(1, round(left))
            raise Throttled(
                wait,
                Objection("reports_throttled", f"node {node} sent too many reports; retry in {wait} s"),
            )
        self._in_progress[node] += 1
        try:
            yield
        finally:
            self._in_progress[node] -= 1
            if not self._in_progress[node]:
                del self._in_progress[node]

    def is_throttled(self, node: NodeId) -> bool:
        """Return whether this process refused reports of the node within the last minutes, due to the report budget."""
        return node in self._refusals

    def refused(self, node: NodeId, seconds: int) -> int:
        """Store a refusal by the node's report budget.

        Return the number of refused requests since the previous such refusal, including the present one.
        """
        now, before = self._now(), self._refusals.get(node)
        if len(self._refusals) >= _MANY:
            self._refusals = {
                name: each for name, each in self._refusals.items() if now - each.at < _REMEMBERED_SECONDS
            }
        self._refusals[node] = _Refusal(now, now + seconds)
        return 1 + (0 if before is None else before.since)

    def taken(self, node: NodeId) -> None:
        """Delete the node's stored refusal, unless it is recent. Called when a report of the node was accepted."""
        refusal = self._refusals.get(node)
        if refusal is not None and self._now() - refusal.at >= _REMEMBERED_SECONDS:
            del self._refusals[node]
