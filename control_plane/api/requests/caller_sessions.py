"""Verification of the sessions of callers.

One query returns a session together with the credential that started it (`control_plane.identity.caller_sessions`). The
principal of a session is the caller that started the session.
"""

from functools import partial
from typing import Final, cast

from fastapi import Request

from control_plane.api.audit.credential_uses import CredentialUses
from control_plane.api.audit.entries import entry_of
from control_plane.api.requests.held_credential import CredentialKind, HeldCredential
from control_plane.api.requests.key_lookups import Lookups
from control_plane.api.requests.state import plane_of
from control_plane.decisions.access import Principal, Role, scopes_of
from control_plane.decisions.refusals import Objection, Unauthorised
from control_plane.decisions.tokens import issuer_of
from control_plane.identity.caller_sessions import SessionRow
from events.values import (
    ServiceAccountId,
    StreamId,
    stream_of_key,
    stream_of_principal,
    stream_of_service_account,
    stream_of_session,
)

_REASONS: Final = {
    "key_expired": "the API key of this session has expired; log in with another key",
    "key_revoked": "the API key of this session was revoked; log in with another key",
    "principal_revoked": "the caller of this session was revoked after it had logged in; log in again",
    "service_account_disabled": "the service account of this session is disabled; enable it, or log in with another key",
    "session_ended": "this session was ended; log in again",
    "session_expired": "this session has expired; log in again",
    "session_idle": "this session was not used for too long; log in again",
}
"""Message of the response that refuses a session, by the code of the refusal."""
_CHECKS: Final = 3
"""Number of times that a watch verifies its session within the session's idle time. Each verification is a use of the
session. A use is stored late by at most half of the idle time (see `Settings`), so the session does not become idle
while the watch runs.
"""


async def verify_session(request: Request, secret_sha256: str) -> HeldCredential:
    """Return the session with this SHA-256 (hex). Raises `Unauthorised` if it is unknown or refused."""
    found = await cast(Lookups[SessionRow], request.app.state.session_lookups).find(secret_sha256)
    if found is None:
        reason = "unknown session; check the Authorization header, or log in again"
        raise Unauthorised(Objection("unknown_session", reason))
    entry_of(request).credential = found.session_id
    if found.refusal is not None:
        raise Unauthorised(Objection(found.refusal, _REASONS[found.refusal]))
    _refuse_untrusted(request, found)
    return HeldCredential(
        principal_of_session(found),
        CredentialKind.SESSION,
        found.session_id,
        _streams(found),
        found.accepted_until.timestamp(),
        partial(_verify_again, request, secret_sha256),
        reverify_seconds=found.idle_seconds / _CHECKS,
    )


async def _verify_again(request: Request, secret_sha256: str) -> HeldCredential:
    """Verify the session of a long-running request again. The verification counts as a use of the session."""
    held = await verify_session(request, secret_sha256)
    cast(CredentialUses, request.app.state.credential_uses).note(held.id, entry_of(request).source)
    return held


def _refuse_untrusted(request: Request, row: SessionRow) -> None:
    """Refuse the session of a token if the operator no longer trusts its identity provider. Raises `Unauthorised`."""
    trusted = {each.name for each in plane_of(request).settings.oidc}
    if not row.of_key and (issuer := issuer_of(row.actor)) not in trusted:
        reason = f"this session was started with a token of {issuer}, which this server no longer trusts; log in again"
        raise Unauthorised(Objection("token_untrusted", reason))


def principal_of_session(row: SessionRow) -> Principal:
    """Return the principal that a session identifies."""
    role = Role(row.role)
    projects = frozenset(row.projects) or None
    return Principal(row.actor, role, scopes_of(role, frozenset(row.scopes)), projects)


def _streams(row: SessionRow) -> tuple[StreamId, ...]:
    """Return the streams with the events that can end a session."""
    own = stream_of_session(row.session_id)
    if row.of_key:
        return (own, *streams_of_key(row.credential, row.service_account))
    return (own, stream_of_principal(row.actor))


def streams_of_key(key_id: str, account: ServiceAccountId | None) -> tuple[StreamId, ...]:
    """Return the streams with the events that can end an API key, which may be one of a service account."""
    own = stream_of_key(key_id)
    return (own,) if account is None else (own, stream_of_service_account(account))
