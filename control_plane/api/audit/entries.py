"""Entries of the access log in this process: one for each request, from its arrival to its end."""

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, cast

from fastapi import Request
from starlette.types import Scope

from control_plane.decisions.misplaced_secrets import without_encoded_secrets

LONGEST_PATH: Final = 256
_LONGEST_TEXT: Final = 200
_REFUSED: Final = 400
_FAILED: Final = 500


class Outcome(StrEnum):
    """How a request ended.

    `aborted`: the client closed the connection before the response was complete. `interrupted`: the API process ended
    first, so that the effect of the request is unknown; the ledger has the facts of a command that was committed.
    """

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Entry:
    """An entry of the access log: one request, or `count` similar requests that had no valid credentials or were
    refused by a quota.

    `route` is the path template of the request's route; null if no route matches the path. `principal` is null until
    the credentials are verified.
    """

    request_id: str
    method: str
    path: str
    source: str | None
    began: float = field(default_factory=time.monotonic)
    route: str | None = None
    principal: str | None = None
    credential: str | None = None
    status: int | None = None
    outcome: Outcome | None = None
    reasons: tuple[str, ...] = ()
    duration_ms: int | None = None
    count: int = 1
    wanted: bool | None = None
    """Whether the request is recorded even if it succeeds; None: not decided, because its route was not reached."""
    exempt: bool = False
    """Whether the request is never recorded."""
    approaching: bool = True
    """Whether the row of the request has not been written yet, but may have to be written soon."""
    closed: bool = True
    """Whether the row gets its position as soon as the request has an outcome; false while further requests are counted
    in this row.
    """
    queued: bool = False
    """Whether the writer of the access log has accepted this entry as a row of its own."""
    submitted: bool = False
    """Whether the statement that inserts the row of this entry was sent to the database."""

    def end(self, outcome: Outcome, status: int | None) -> None:
        self.outcome, self.status = outcome, status
        self.duration_ms = round((time.monotonic() - self.began) * 1000)

    @property
    def is_of_node(self) -> bool:
        return self.principal is not None and self.principal.startswith("node:")

    @property
    def is_read(self) -> bool:
        return self.method in ("GET", "HEAD")


def outcome_of(status: int) -> Outcome:
    """Return the outcome of a request from the HTTP status of its response, which was sent completely."""
    if status >= _FAILED:
        return Outcome.FAILED
    return Outcome.REFUSED if status >= _REFUSED else Outcome.COMPLETED


def entry_for(scope: Scope) -> Entry:
    """Return a new entry for a request that has arrived, and store it in the request's state."""
    client = scope.get("client")
    path = scope.get("raw_path") or scope["path"].encode("utf-8", "backslashreplace")
    entry = Entry(
        request_id=scope["state"]["request_id"],
        method=scope["method"][:16],
        path=storable(without_encoded_secrets(path.decode("ascii", "backslashreplace")))[:LONGEST_PATH],
        source=None if client is None else storable(str(client[0]))[:_LONGEST_TEXT],
    )
    scope["state"]["access"] = entry
    return entry


def entry_of(request: Request) -> Entry:
    """Return the entry of a request in the access log."""
    return cast(Entry, request.state.access)


def storable(text: str) -> str:
    """Return the text with characters escaped that Postgres cannot store (U+0000 and surrogates)."""
    if text.isprintable():
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
