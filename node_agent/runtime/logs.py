"""Logging of the agent: one event per line on standard error, as JSON or in a form for people.

A host that cannot be read or repaired causes the same warning at each survey. Such a warning is logged once, and then
once per minute with the number of equal warnings that were dropped.
"""

import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final, Literal

import structlog
from structlog.dev import plain_traceback
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor

from events.values import NodeId

_REPEAT_SECONDS: Final = 60.0
_KEPT: Final = 256
"""Number of distinct warnings that are stored. When the store is full, the oldest warning is removed from it; an equal
warning is then written again."""


class RepeatsLimited:
    """A structlog processor that drops a warning if an equal warning was written within the last `seconds`.
    Thread-safe.

    The next equal warning after that time is written with the field `repeated`: the number of warnings that were
    dropped.
    """

    def __init__(self, seconds: float = _REPEAT_SECONDS, clock: Callable[[], float] = monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        self._written: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """The time at which each warning was last written, and the number of equal warnings dropped since, under the
        warning's text."""

    def __call__(self, _logger: object, method: str, event: EventDict) -> EventDict:
        if method != "warning":
            return event
        key, now = repr(sorted(event.items())), self._clock()
        with self._lock:
            at, dropped = self._written.pop(key, (None, 0))
            if at is not None and now < at + self._seconds:
                self._written[key] = at, dropped + 1
                raise structlog.DropEvent
            self._written[key] = now, 0
            while len(self._written) > _KEPT:
                self._written.popitem(last=False)
        return {**event, "repeated": dropped} if dropped else event


def configure_logs(style: Literal["console", "json"], node_id: NodeId) -> None:
    """Configure structlog and `logging`; called once, in `main`. Warnings and errors of libraries are written too."""

    def name_node(_logger: object, _method: str, event: EventDict) -> EventDict:
        return {**event, "node_id": node_id}

    shared: list[Processor] = [
        name_node,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without local variables, which both renderers would show: the node's secrets are among them.
    plain = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
    last: list[Processor] = (
        [plain, structlog.processors.JSONRenderer()]
        if style == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain_traceback)]
    )
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, RepeatsLimited(), *shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Dramatiq's worker logs the complete message of every refused task: signed tasks must not appear in the log, and
    # the agent logs refusals itself.
    logging.getLogger("dramatiq.worker").setLevel(logging.CRITICAL)
