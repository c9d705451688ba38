"""Sessions of callers: their secrets, and one query that decides whether a session is accepted.

A session depends on the credential that started it. A session that was started with an API key has, at each request,
the current role and limits of the key or of the key's service account, and is refused when the key would be refused. A
session that was started with a token keeps the role and limits that the token granted, and is refused once the caller
is revoked, because then the token would be refused too. Every session is refused after its expiry, and when it was not
used for its idle time. `work.credential_use` stores the last use of each session; the stored time is late by at most
the setting `credential_use_seconds`.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.connection import fetch_rows, ledger_connection
from events.values import ProjectId, ServiceAccountId, SessionId

PREFIX: Final = "ss_"
"""Beginning of each secret of a session. Secrets of API keys begin differently, and tokens contain a dot."""
State = Literal["active", "ended", "expired"]

# The key, the account, the revocation and the last use are joined here, so that the authentication of a request needs
# one query. A session is refused with the first reason that applies; the permanent ones come first.
_SESSIONS: Final = """
select s.session_id, s.version, s.actor, s.credential, s.secret_sha256, s.label, s.started_at, s.expires_at,
  s.idle_seconds, s.ended, s.token_issued_at is null as of_key, key.expires_at as key_expires_at, key.service_account,
  coalesce(account.role, key.role, s.role) as role, coalesce(account.projects, key.projects, s.projects) as projects,
  coalesce(account.scopes, key.scopes, s.scopes) as scopes, used.used_at, used.source as used_from,
  case
    when s.ended is not null then 'session_ended'
    when key.revoked is not null then 'key_revoked'
    when account.disabled is not null then 'service_account_disabled'
    when caller.revoked_at >= s.token_issued_at then 'principal_revoked'
    when key.expires_at <= clock_timestamp() then 'key_expired'
    when s.expires_at <= clock_timestamp() then 'session_expired'
    when greatest(used.used_at, s.started_at) + make_interval(secs => s.idle_seconds) <= clock_timestamp()
      then 'session_idle'
  end as refusal
from read.session s
left join read.api_key key on key.key_id = s.credential and s.token_issued_at is null
left join read.service_account account on account.account = key.service_account
left join read.principal caller on caller.actor = s.actor and s.token_issued_at is not null
left join work.credential_use used on used.credential = s.session_id
"""
_BY_SECRETS: Final = f"{_SESSIONS} where s.secret_sha256 = any(%b::text[])"
_BY_ID: Final = f"{_SESSIONS} where s.session_id = %s"
_EXPIRED: Final = ("key_expired", "session_expired", "session_idle")
"""Codes with which expired sessions are refused. All other codes refuse sessions that have ended."""
_MATCHING: Final = f"""
select * from (
  {_SESSIONS}
  where (%(actor)s::text is null or s.actor = %(actor)s)
    and (%(after)s::text is null or s.session_id > %(after)s)
    and (%(before)s::text is null or s.session_id < %(before)s)
) found
where case %(state)s::text
  when 'active' then refusal is null
  when 'expired' then refusal = any(%(expired)s)
  when 'ended' then refusal <> all(%(expired)s)
  else true
end
"""  # noqa: S608  # made of constants
_ASCENDING: Final = f"{_MATCHING} order by session_id limit %(limit)s"
_DESCENDING: Final = f"{_MATCHING} order by session_id desc limit %(limit)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session at the time of the query, with the values of its API key, its service account and its last use.

    `refusal` is the code with which a request with the session is refused; None while it is accepted. `ended` is the
    reason that the caller or an administrator gave. `role`, `projects` and `scopes` (empty: not limited) are the
    effective ones. `credential` is the API key if `of_key`, else the token that started the session.
    """

    session_id: SessionId
    version: int
    actor: str
    credential: str
    of_key: bool
    secret_sha256: str
    label: str
    started_at: datetime
    expires_at: datetime
    idle_seconds: int
    ended: str | None
    role: str
    projects: list[ProjectId]
    scopes: list[str]
    key_expires_at: datetime | None
    service_account: ServiceAccountId | None
    used_at: datetime | None
    used_from: str | None
    refusal: str | None

    @property
    def state(self) -> State:
        """The state of the session in lists: a session that is refused has either ended or expired."""
        if self.refusal is None:
            return "active"
        return "expired" if self.refusal in _EXPIRED else "ended"

    @property
    def accepted_until(self) -> datetime:
        """The expiry of the session, or of its API key if that is earlier."""
        return self.expires_at if self.key_expires_at is None else min(self.expires_at, self.key_expires_at)


def new_secret() -> str:
    """Return the secret of a new session."""
    return f"{PREFIX}{secrets.token_urlsafe(32)}"


async def by_secrets(conn: AsyncConnection, secret_sha256: Collection[str]) -> dict[str, SessionRow]:
    """Return the sessions that have one of these SHA-256 hashes (hex) of their secret, by hash."""
    ledger = await ledger_connection(conn)
    rows = await fetch_rows(ledger, SessionRow, _BY_SECRETS, [[*secret_sha256]], prepare=True)
    return {row.secret_sha256: row for row in rows}


async def find(conn: AsyncConnection, session_id: str) -> SessionRow | None:
    """Return the session with this id, or None if there is no such session."""
    rows = await fetch_rows(await ledger_connection(conn), SessionRow, _BY_ID, [session_id])
    return rows[0] if rows else None


async def page(
    conn: AsyncConnection,
    *,
    after: str | None,
    limit: int,
    descending: bool = False,
    actor: str | None = None,
    state: State | None = None,
) -> list[SessionRow]:
    """Return one page of sessions in the order of their ids, optionally only the sessions of `actor`, or in state
    `state`.
    """
    bounds = {"after": None, "before": after} if descending else {"after": after, "before": None}
    values = {"actor": actor, "state": state, "expired": [*_EXPIRED], "limit": limit, **bounds}
    query = _DESCENDING if descending else _ASCENDING
    # Not prepared: the planner then uses the values, and so the index of the sessions of an actor.
    return await fetch_rows(await ledger_connection(conn), SessionRow, query, values, prepare=False)
