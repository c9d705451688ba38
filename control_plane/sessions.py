"""Sessions of nodes: who may speak for a node right now, in `work.node_session`, one row a node.

A session is numbered, and begins where the one before it ended: a renewal names the session it goes on from and shows
its credential's hash, and the row changes only if that is still the newest. So of two copies of a node's disk,
whichever renews first has the node, and the other is superseded: it asks to go on from what is past, or from what it
never had. A refusal does not tell the newest number. Whoever asked and did not hear the answer asks again with the
same secrets, and gets the same session.

A session counts while it has not expired, by the database's clock, and while its key is the node's key in the
ledger: a revocation and a new enrolment need no more than their fact. Losing these rows costs no node its place, since
its key is in the ledger: a node that knows of a later session than we do goes on from there, once ours has expired.
Before that the later one may be a lie, for every copy of the disk has the key.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane import work
from control_plane.decisions.refusals import Objection, Unauthorised
from events.values import NodeId
from read_models import nodes

session = work.node_session


@dataclass(frozen=True, slots=True)
class Secrets:
    """What a node will show, by SHA-256 (hex)."""

    credential_sha256: str
    queue_password_sha256: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The session that a node asks for: its secrets, the types of task that its agent speaks, and its end."""

    secrets: Secrets
    speaks: Sequence[str]
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Presented:
    """The session that a renewal goes on from, as the node says, with the SHA-256 of its credential."""

    number: int
    credential_sha256: str


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose session it is: the node, by the key that it has."""

    node_id: NodeId
    key_thumbprint: str


class Superseded(Exception):
    """Somebody went on from the presented session already, or it is not the session that the node says.

    Its words are for whoever asked, who may be a stranger with a copy of the key: they do not tell `current`.
    """

    def __init__(self, node_id: NodeId, presented: int, current: int) -> None:
        super().__init__(f"session {presented} of node {node_id} is none to go on from")
        self.node_id, self.presented, self.current = node_id, presented, current


async def begin(conn: AsyncConnection, holder: Holder, asked: Asked) -> int:
    """An enrolment's session; its number. Nobody goes on from an earlier one."""
    row = await _locked(conn, holder.node_id)
    number = 1 if row is None else row.number + 1
    await _write(conn, holder, _values(holder, number, asked))
    return number


async def renew(conn: AsyncConnection, holder: Holder, presented: Presented, asked: Asked) -> int:
    """Go on from the presented session; the new one's number. Raises `Superseded`."""
    row = await _locked(conn, holder.node_id)
    if row is not None and row.key_thumbprint == holder.key_thumbprint:
        if presented.number == row.number - 1 and _is(row, asked.secrets):
            return await _go_on(conn, row, asked)
        if not _may_go_on(row, presented):
            raise Superseded(holder.node_id, presented.number, row.number)
    number = presented.number + 1
    values = _values(holder, number, asked)
    if row is not None and row.number == presented.number:
        # The node may be between its two passwords right now, and the queue must know both.
        values["prior_queue_password_sha256"] = row.queue_password_sha256
    await _write(conn, holder, values)
    return number


async def repeated(conn: AsyncConnection, holder: Holder, asked: Asked) -> int | None:
    """The newest session if it is of these very secrets, which then last as long as a new one; else None."""
    row = await _locked(conn, holder.node_id)
    if row is None or row.key_thumbprint != holder.key_thumbprint or not _is(row, asked.secrets):
        return None
    return await _go_on(conn, row, asked)


async def _go_on(conn: AsyncConnection, row: sa.Row[Any], asked: Asked) -> int:
    """The session lasts as long as a new one, and is of the agent that asked last: it may be of another release."""
    values = {"expires_at": asked.expires_at, "speaks": list(asked.speaks) or None}
    await conn.execute(sa.update(session).where(_of(row.node_id)).values(values))
    return int(row.number)


async def spoken(conn: AsyncConnection, node_id: NodeId) -> frozenset[str] | None:
    """The types of task that the node's agent knows, as it said last; None when it said nothing."""
    speaks = await conn.scalar(sa.select(session.c.speaks).where(_of(node_id)))
    return None if speaks is None else frozenset(speaks)


def knows(node_id: sa.ColumnElement[str], announced: str) -> sa.ScalarSelect[bool]:
    """Whether that node's agent said last that it knows what agents announce by this; a question within another."""
    said = session.c.speaks.contains([announced])
    return sa.select(said).where(session.c.node_id == node_id).scalar_subquery()


async def end(conn: AsyncConnection, node_id: NodeId, now: datetime) -> None:
    """Let the node's session expire. Its number is kept, so that no copy of its disk is ever current again."""
    await conn.execute(sa.update(session).where(_of(node_id)).values(expires_at=now))


async def drop_prior(conn: AsyncConnection, node_id: NodeId) -> None:
    """Let nobody into the node's queue any more who knows only the session before the newest."""
    forgotten = {"prior_queue_password_sha256": None, "queue_number": None}
    await conn.execute(sa.update(session).where(_of(node_id)).values(forgotten))


@dataclass(frozen=True, slots=True)
class Shown:
    """What a caller showed to be taken for a node: the SHA-256 of a credential."""

    node_id: NodeId
    credential_sha256: str


async def refuse_stranger(conn: AsyncConnection, shown: Shown) -> None:
    """Raises `Unauthorised` unless it is the credential of a session of the node that counts."""
    node = nodes.node
    live = (session.c.expires_at > sa.func.clock_timestamp()).label("live")
    query = (
        sa.select(session.c.credential_sha256, live)
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


def refusal(*, known: bool, live: bool) -> Unauthorised | None:
    """Why somebody is not taken for a node, by a session of these credentials that is `known`, and `live`."""
    if not known:
        return Unauthorised(Objection("unknown_node", "no node is known by these credentials"))
    if not live:
        return Unauthorised(Objection("session_expired", "these credentials expired; renew the session"))
    return None


def _may_go_on(row: sa.Row[Any], presented: Presented) -> bool:
    if presented.number == row.number:
        return hmac.compare_digest(row.credential_sha256, presented.credential_sha256)
    # A later session than we know of was granted by us and then forgotten, with a backup that was restored. Nobody can
    # be asked for its credential, so it waits until the one that we know of is nobody's any more.
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


def _values(holder: Holder, number: int, asked: Asked) -> dict[str, Any]:
    return {
        "number": number,
        "key_thumbprint": holder.key_thumbprint,
        "credential_sha256": asked.secrets.credential_sha256,
        "queue_password_sha256": asked.secrets.queue_password_sha256,
        "prior_queue_password_sha256": None,
        "expires_at": asked.expires_at,
        "speaks": list(asked.speaks) or None,
    }


async def _write(conn: AsyncConnection, holder: Holder, values: dict[str, Any]) -> None:
    statement = insert(session).values(node_id=holder.node_id, **values)
    await conn.execute(statement.on_conflict_do_update(index_elements=["node_id"], set_=values))
