"""Middleware that records each request in the access log.

A dependency of every route (`requests.recording`) opens the row of a request, after the credentials are verified and
before the handler runs. The middleware completes the row once the response was sent. A request that is refused before
that dependency runs gets its row from the middleware, before its response is sent. The middleware also notes the use
of the credential of a caller.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.api.audit.access_log import AccessLog
from control_plane.api.audit.credential_uses import CredentialUses
from control_plane.api.audit.entries import Entry, Outcome, entry_for, outcome_of

_BROKEN: Final = 500


class Audited:
    """Middleware that records requests in the access log. It passes on each ASGI message at once, as a watch needs."""

    def __init__(self, app: ASGIApp, log: AccessLog, uses: CredentialUses) -> None:
        self._app, self._log, self._uses = app, log, uses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _Recording(self._log, self._uses, entry_for(scope), receive, send).run(self._app, scope)
        else:
            await self._app(scope, receive, send)


class _Recording:
    """The recording of one request: it observes the messages between the server and the application."""

    def __init__(
        self, log: AccessLog, uses: CredentialUses, entry: Entry, receive: Receive, send: Send
    ) -> None:
        self._log, self._uses, self._entry = log, uses, entry
        self._receive, self._send = receive, send
        self._status: int | None = None
        self._complete = self._left = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        self._log.arrived(self._entry)
        try:
            await app(scope, self._received, self._sent)
        except asyncio.CancelledError:
            self._end(Outcome.INTERRUPTED)
            raise
        except Exception:
            self._entry.reasons = self._entry.reasons or ("internal_error",)
            self._status = self._status or _BROKEN
            self._end(Outcome.ABORTED if self._left else Outcome.FAILED)
            raise
        self._end(self._outcome())

    def _outcome(self) -> Outcome:
        if not self._complete or self._status is None:
            return Outcome.ABORTED
        return outcome_of(self._status)

    async def _received(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._complete:
            self._left = True
        return message

    async def _sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = int(message["status"])
            self._note_use()
            if not self._entry.queued and self._is_recorded(self._status):
                self._end(Outcome.ABORTED if self._left else outcome_of(self._status))
                await self._log.answerable()
        elif not message.get("more_body", False):
            self._complete = True
        await self._send(message)

    def _note_use(self) -> None:
        """Note the use of a caller's verified credential when the response begins, because a watch may never end.

        The use of a node's credential is not noted: the heartbeats of the node show it.
        """
        entry = self._entry
        if entry.credential is not None and entry.principal is not None and not entry.is_of_node:
            self._uses.note(entry.credential, entry.source)

    def _is_recorded(self, status: int) -> bool:
        """Return whether the access log records a request for which no row was written before its handler ran."""
        entry = self._entry
        if entry.exempt:
            return False
        if entry.wanted is None:
            entry.wanted = self._log.wants(entry, None)
        return entry.wanted or outcome_of(status) is not Outcome.COMPLETED

    def _end(self, outcome: Outcome) -> None:
        """Record the end of the request, if the access log records the request and has not recorded its end yet."""
        entry = self._entry
        if entry.outcome is None and (entry.queued or self._is_recorded(self._status or _BROKEN)):
            entry.end(outcome, self._status)
            self._log.end(entry)
        else:
            self._log.passed_by(entry)
