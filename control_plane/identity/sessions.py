"""Node sessions: which agent may act as a node right now, in `work.node_session`, one row per node.

Sessions are numbered. A renewal names the session it continues and presents the hash of that session's credential, and
the row changes only if that session is still the newest. So of two copies of a node's disk, the one that renews first
keeps the node, and the other is superseded: it tries to continue an old session, or a session that the node never had.
A refusal does not reveal the newest number. An agent that got no response repeats the request with the same secrets,
and gets the same session.

A session is valid while it has not expired by the database's clock, and while its key is the node's key in the ledger,
so a revocation or a new enrolment needs only its event. If these rows are lost, nodes keep their identity, because
their keys are in the ledger: a node that presents a later session number than the stored one continues from there once
the stored session has expired. Before that, the claim cannot be verified, because every copy of the disk has the key.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.refusals import Objection, Unauthorised
from control_plane.work import tables
from events.values import NodeId
from read_models import nodes

session = tables.node_session


@dataclass(frozen=True, slots=True)
class Secrets:
    """SHA-256 (hex) of the secrets of a session: the node's API credential and its queue password."""

    credential_sha256: str
    queue_password_sha256: str


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A requested session: its secrets, the task types that the agent supports, and its expiry."""

    secrets: Secrets
    task_types: Sequence[str]
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class PresentedSession:
    """The session that a renewal continues, as the node claims, with the SHA-256 of its credential."""

    number: int
    credential_sha256: str


@dataclass(frozen=True, slots=True)
class Holder:
    """The node that holds a session, with the thumbprint of its key."""

    node_id: NodeId
    key_thumbprint: str


class Superseded(Exception):
    """The presented session was renewed already, or is not a session of the node.

    The message does not contain `current`, because the caller may be an unauthorised copy with the node's key.
    """

    def __init__(self, node_id: NodeId, presented: int, current: int) -> None:
        super().__init__(
            f"session {presented} of node {node_id} is not its newest session; enrol the node again"
        )
        self.node_id, self.presented, self.current = node_id, presented, current


async def begin(conn: AsyncConnection, holder: Holder, request: SessionRequest) -> int:
    """Begin the first session after an enrolment and return its number. Earlier sessions cannot be continued."""
    row = await _locked(conn, holder.node_id)
    number = 1 if row is None else row.number + 1
    await _write(conn, holder, _values(holder, number, request))
    return number


async def renew(
    conn: AsyncConnection, holder: Holder, presented: PresentedSession, request: SessionRequest
) -> int:
    """Renew the presented session and return the number of the new one. Raises `Superseded`."""
    row = await _locked(conn, holder.node_id)
    if row is not None and row.key_thumbprint == holder.key_thumbprint:
        if presented.number == row.number - 1 and _is(row, request.secrets):
            return await _extend(conn, row, request)
        if not _may_continue(row, presented):
            raise Superseded(holder.node_id, presented.number, row.number)
    number = presented.number + 1
    values = _values(holder, number, request)
    if row is not None and row.number == presented.number:
        # The node may be switching between its two passwords right now, so the queue must accept both.
        values["prior_queue_password_sha256"] = row.queue_password_sha256
    await _write(conn, holder, values)
    return number


async def repeated(conn: AsyncConnection, holder: Holder, request: SessionRequest) -> int | None:
    """Extend the node's newest session and return its number, if the session has these secrets; else return None."""
    row = await _locked(conn, holder.node_id)
    if row is None or row.key_thumbprint != holder.key_thumbprint or not _is(row, request.secrets):
        return None
    return await _extend(conn, row, request)


async def _extend(conn: AsyncConnection, row: sa.Row[Any], request: SessionRequest) -> int:
    """Extend a session, and store the task types of the requesting agent, which may be of another release."""
    values = {"expires_at": request.expires_at, "capabilities": list(request.task_types) or None}
    await conn.execute(sa.update(session).where(_of(row.node_id)).values(values))
    return int(row.number)


async def supported_task_types(conn: AsyncConnection, node_id: NodeId) -> frozenset[str] | None:
    """Return the task types that the node's agent reported last, or None if it reported none."""
    task_types = await conn.scalar(sa.select(session.c.capabilities).where(_of(node_id)))
    return None if task_types is None else frozenset(task_types)


def supports(node_id: sa.ColumnElement[str], announced: str) -> sa.ScalarSelect[bool]:
    """Return a subquery for whether the agent of node `node_id` last reported `announced` among its task types."""
    supported = session.c.capabilities.contains([announced])
    return sa.select(supported).where(session.c.node_id == node_id).scalar_subquery()


async def end(conn: AsyncConnection, node_id: NodeId, now: datetime) -> None:
    """End the node's session now. The number of the session is kept, so that an agent with a copy of the node's disk
    cannot continue an older session.
    """
    await conn.execute(sa.update(session).where(_of(node_id)).values(expires_at=now))


async def drop_prior(conn: AsyncConnection, node_id: NodeId) -> None:
    """Invalidate the password of the previous session, so that only the newest session can connect to the queue."""
    forgotten = {"prior_queue_password_sha256": None, "queue_number": None}
    await conn.execute(sa.update(session).where(_of(node_id)).values(forgotten))


@dataclass(frozen=True, slots=True)
class PresentedCredential:
    """The credential with which a caller authenticates as a node, by its SHA-256 (hex)."""

    node_id: NodeId
    credential_sha256: str


async def refuse_unknown_node(conn: AsyncConnection, shown: PresentedCredential) -> int:
    """Check that a credential belongs to a valid session of its node, and return the session's number.

    Raises `Unauthorised`.
    """
    node = nodes.node
    live = (session.c.expires_at > sa.func.clock_timestamp()).label("live")
    query = (
        sa.select(session.c.credential_sha256, session.c.number, live)
        .join(
            node,
            sa.and_(node.c.node_id == session.c.node_id, node.c.key_thumbprint == session.c.key_thumbprint),
        )
        .where(_of(shown.node_id))
    )
    row = (await conn.execute(query)).one_or_none()
    known = row is not None and hmac.compare_digest(row.credential_sha256, shown.credential_sha256)
    if error := refusal(known=known, live=row is not None and row.live):
        raise error
    assert row is not None, "refusal() must refuse an unknown session"
    return int(row.number)


def refusal(*, known: bool, live: bool) -> Unauthorised | None:
    """Return the reason to refuse a node's credentials, or None to accept them.

    `known` is whether a session has these credentials, `live` whether this session has not expired.
    """
    if not known:
        return Unauthorised(
            Objection("unknown_node", "invalid or unknown node credentials; renew the session")
        )
    if not live:
        return Unauthorised(Objection("session_expired", "these node credentials expired; renew the session"))
    return None


def _may_continue(row: sa.Row[Any], presented: PresentedSession) -> bool:
    if presented.number == row.number:
        return hmac.compare_digest(row.credential_sha256, presented.credential_sha256)
    # A session later than the stored one was granted and then lost, by restoring a backup. Its credential cannot be
    # verified, so it has to wait until the stored session has expired.
    return presented.number > row.number and not row.live


def _of(node_id: NodeId) -> sa.ColumnElement[bool]:
    return session.c.node_id == node_id


async def _locked(conn: AsyncConnection, node_id: NodeId) -> sa.Row[Any] | None:
    live = (session.c.expires_at > sa.func.clock_timestamp()).label("live")
    return (await conn.execute(sa.select(session, live).where(_of(node_id)).with_for_update())).one_or_none()


def _is(row: sa.Row[Any], secrets: Secrets) -> bool:
    return (row.credential_sha256, row.queue_password_sha256) == (
        secrets.credential_sha256,
        secrets.queue_password_sha256,
    )


def _values(holder: Holder, number: int, request: SessionRequest) -> dict[str, Any]:
    return {
        "number": number,
        "key_thumbprint": holder.key_thumbprint,
        "credential_sha256": request.secrets.credential_sha256,
        "queue_password_sha256": request.secrets.queue_password_sha256,
        "prior_queue_password_sha256": None,
        "expires_at": request.expires_at,
        "capabilities": list(request.task_types) or None,
    }


async def _write(conn: AsyncConnection, holder: Holder, values: dict[str, Any]) -> None:
    statement = insert(session).values(node_id=holder.node_id, **values)
    await conn.execute(statement.on_conflict_do_update(index_elements=["node_id"], set_=values))
