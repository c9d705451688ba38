"""How the agent logs: one event a line on standard error, as JSON or for people."""

import logging
import sys
from typing import Literal

import structlog
from structlog.dev import plain_traceback
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor

from events.values import NodeId


def configure_logs(style: Literal["console", "json"], node_id: NodeId) -> None:
    """Called once, in `main`. What libraries log through `logging` takes the same way from warnings on."""

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
        processors=[*shared, *last],
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
    # It shows the message of every task that was refused, whole: a signed text is no business of a log's reader, and
    # what there is to say about it we say ourselves.
    logging.getLogger("dramatiq.worker").setLevel(logging.CRITICAL)
