"""Commands about API keys (issue, replace, revoke) and about the tokens of a caller (revoke)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.projects import against_project
from control_plane.decisions.access import DEFAULT, Role
from control_plane.decisions.refusals import Conflict, Objection, UnknownName
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.access import ApiKeyIssued, ApiKeyReplaced, ApiKeyRevoked
from events.ledger.append import Change
from events.principals import PrincipalRevoked
from events.projects import ProjectCreated
from events.values import ProjectId, new_uuid, stream_of_key, stream_of_principal, stream_of_project
from read_models import keys, principals, projects
from read_models.keys import KeyRow


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A requested API key: the name of its owner, its role, and the projects and scopes that it is limited to (empty:
    not limited). `lifetime` of None means that it does not expire.
    """

    name: str
    role: Role
    projects: tuple[ProjectId, ...] = ()
    scopes: tuple[str, ...] = ()
    lifetime: timedelta | None = None


def issue_first_key(name: str, key_sha256: str) -> Command:
    """Record an administrator's API key by its SHA-256 (hex), issued by an operator on the server.

    The first key of an installation also creates the project `default`.
    """
    origin = Origin(actor="operator", reason="issue-key", correlation_id=new_uuid())

    async def command(transaction: Transaction) -> Decision:
        fact = _issued(KeyRequest(name, Role.ADMIN), key_sha256, transaction.now)
        changes = [Change(stream_of_key(fact.key_id), 0, (fact,))]
        if await projects.find(transaction.conn, DEFAULT) is None:
            created = ProjectCreated(DEFAULT, "Project of requests that name none")
            changes.append(Change(stream_of_project(DEFAULT), 0, (created,)))
        return Decision(tuple(changes), origin.at(transaction.now))

    return command


def issue_key(
    wanted: KeyRequest,
    key_sha256: str,
    origin: Origin,
    most: timedelta | None,
    render: Callable[[ApiKeyIssued], str],
) -> Command:
    """Issue an API key, recorded by its SHA-256 (hex); `render` makes the answer.

    Raises `Conflict` for an unknown or archived project, and for a lifetime above `most`, the maximum that the operator
    sets.
    """

    async def command(transaction: Transaction) -> Decision:
        against = [
            *_too_long(wanted.lifetime, most),
            *[
                objection
                for number, name in enumerate(wanted.projects)
                for objection in await against_project(transaction.conn, name, f"/projects/{number}")
            ],
        ]
        if against:
            raise Conflict(*against)
        fact = _issued(wanted, key_sha256, transaction.now)
        change = Change(stream_of_key(fact.key_id), 0, (fact,))
        return Decision((change,), origin.at(transaction.now), render(fact))

    return command


def replace_key(
    key_id: str, key_sha256: str, overlap: timedelta, origin: Origin, render: Callable[[ApiKeyIssued], str]
) -> Command:
    """Issue a successor of an API key with the same role, projects, scopes and expiry. The replaced key is accepted for
    the period `overlap`, but never longer than before. `render` makes the answer from the fact about the new key.

    Raises `UnknownName`, and `Conflict` if the key is revoked, expired or replaced already.
    """

    async def command(transaction: Transaction) -> Decision:
        row, now = await _usable(transaction.conn, key_id, transaction.now), transaction.now
        if row.successor is not None:
            reason = f"API key {key_id} was already replaced by {row.successor}; rotate that key"
            raise Conflict(Objection("key_replaced", reason))
        ends = now + overlap
        fact = ApiKeyIssued(
            key_id=_new_id(row.name),
            name=row.name,
            role=row.role,
            key_sha256=key_sha256,
            projects=row.projects,
            scopes=row.scopes,
            expires_at=row.expires_at,
            replaces=key_id,
        )
        replaced = ApiKeyReplaced(
            key_id, fact.key_id, ends if row.expires_at is None else min(ends, row.expires_at)
        )
        changes = (
            Change(stream_of_key(key_id), row.version, (replaced,)),
            Change(stream_of_key(fact.key_id), 0, (fact,)),
        )
        return Decision(changes, origin.at(now), render(fact))

    return command


def revoke_key(key_id: str, reason: str, origin: Origin) -> Command:
    """Revoke an API key: it is refused from now on. Raises `UnknownName`. Revoking it again changes nothing."""

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction.conn, key_id)
        if row.revoked is not None:
            return Decision((), origin.at(transaction.now))
        change = Change(stream_of_key(key_id), row.version, (ApiKeyRevoked(key_id, reason),))
        return Decision((change,), origin.at(transaction.now))

    return command


def revoke_tokens(actor: str, reason: str, origin: Origin) -> Command:
    """Revoke the tokens of a caller that were issued until now. The answer is the time of the revocation. Revoking them
    again also revokes the tokens issued meanwhile.
    """

    async def command(transaction: Transaction) -> Decision:
        fact = PrincipalRevoked(actor, reason, transaction.now)
        version = await principals.version_of(transaction.conn, actor)
        change = Change(stream_of_principal(actor), version, (fact,))
        return Decision((change,), origin.at(transaction.now), json.dumps(transaction.now.isoformat()))

    return command


def _issued(wanted: KeyRequest, key_sha256: str, now: datetime) -> ApiKeyIssued:
    return ApiKeyIssued(
        key_id=_new_id(wanted.name),
        name=wanted.name,
        role=wanted.role,
        key_sha256=key_sha256,
        projects=wanted.projects,
        scopes=wanted.scopes,
        expires_at=None if wanted.lifetime is None else now + wanted.lifetime,
    )


def _new_id(name: str) -> str:
    return f"{name}-{new_uuid().hex[-12:]}"


def _too_long(lifetime: timedelta | None, most: timedelta | None) -> list[Objection]:
    if most is None or (lifetime is not None and lifetime <= most):
        return []
    given = "without expiry" if lifetime is None else f"of {lifetime.total_seconds():.0f} seconds"
    reason = f"a key {given} exceeds the maximum lifetime of {most.total_seconds():.0f} seconds"
    return [Objection("lifetime_too_long", reason, "/lifetime_seconds")]


async def _locked(conn: AsyncConnection, key_id: str) -> KeyRow:
    row = await keys.find(conn, key_id, lock=True)
    if row is None:
        raise unknown_key(key_id)
    return row


async def _usable(conn: AsyncConnection, key_id: str, now: datetime) -> KeyRow:
    row = await _locked(conn, key_id)
    if row.revoked is not None:
        raise Conflict(Objection("key_not_active", f"API key {key_id} was revoked: {row.revoked}"))
    if row.expires_at is not None and row.expires_at <= now:
        raise Conflict(
            Objection("key_not_active", f"API key {key_id} expired at {row.expires_at.isoformat()}")
        )
    return row


def unknown_key(key_id: str) -> UnknownName:
    return UnknownName(Objection("unknown_key_id", f"there is no API key with the id {key_id}"))
