"""Trace contexts: the `traceparent` (W3C Trace Context, level 1) of a request, an event, a task or a report.

Everything that follows from one request has the same trace id. The parent id of each record is the second half of the
id of its direct cause. The cause of an event is a request or a report, that of a task is an event, and that of a report
is a task. So a trace can be drawn from the ledger, without another store.
"""

import re
from typing import Final
from uuid import UUID, uuid5

_FORM: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.DOTALL,
)
_CURRENT: Final = "00"
_SAMPLED: Final = 1
"""Bit of the flag `sampled`, the only flag that version 00 of `traceparent` defines. The other bits are reserved, and a
program must not pass them on (section 3.2.2.5)."""


def started(cause: UUID) -> str:
    """Return the context of a new trace. Its trace id is the id of `cause`, such as a request, without hyphens."""
    return _context(cause.hex, cause, _SAMPLED)


def continued(context: str | None, cause: UUID) -> str | None:
    """Return the context of a direct consequence of `cause`, in the trace of `context`.

    Return None if there is no context, or if it is invalid: an invalid one must be ignored (W3C Trace Context,
    section 4.3).
    """
    found = _parsed(context)
    return None if found is None else _context(found["trace"], cause, int(found["flags"], 16) & _SAMPLED)


def trace_id(context: str | None) -> str | None:
    """Return the trace id of a context, in 32 hexadecimal digits; None if there is no valid context."""
    found = _parsed(context)
    return None if found is None else found["trace"]


def report_id(incarnation: UUID, sequence: int) -> UUID:
    """Return a UUID for a report of a node. The report itself has only a sequence number within an incarnation of the
    node's spool.
    """
    return uuid5(incarnation, f"report {sequence}")


def _context(trace: str, cause: UUID, flags: int) -> str:
    return f"{_CURRENT}-{trace}-{cause.hex[16:]}-{flags:02x}"


def _parsed(context: str | None) -> re.Match[str] | None:
    found = None if context is None else _FORM.fullmatch(context)
    # A later version may append fields, which a program of this version ignores (section 4.3).
    return None if found is None or (found["version"] == _CURRENT and found["more"] is not None) else found
