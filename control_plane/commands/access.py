"""Commands about API keys (issue, replace, revoke) and about the tokens of a caller (revoke)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.projects import against_projects
from control_plane.commands.service_accounts import unknown_service_account
from control_plane.decisions.access import DEFAULT, Principal, Role, against_granting
from control_plane.decisions.keys import IssuedKey, against_rotating, inactive_service_account
from control_plane.decisions.refusals import Forbidden, Objection, UnknownName, refuse_if
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from events.access import ApiKeyIssued, ApiKeyReplaced, ApiKeyRevoked
from events.ledger.append import Change
from events.principals import PrincipalLimits, PrincipalLimitsSet, PrincipalRevoked
from events.projects import ProjectCreated
from events.values import (
    ProjectId,
    ServiceAccountId,
    new_uuid,
    stream_of_key,
    stream_of_principal,
    stream_of_project,
)
from read_models import keys, principals, projects, service_accounts
from read_models.keys import KeyRow
from read_models.service_accounts import ServiceAccountRow


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A requested API key: the name of its owner, its role, and the projects and scopes that it is limited to (empty:
    not limited). `lifetime` of None means that it does not expire.

    A key of a service account has no role of its own: either `role` or `service_account` is None.
    """

    name: str
    role: Role | None
    projects: tuple[ProjectId, ...] = ()
    scopes: tuple[str, ...] = ()
    lifetime: timedelta | None = None
    service_account: ServiceAccountId | None = None


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
    render: Callable[[KeyRow], str],
    *,
    issuer: Principal,
) -> Command:
    """Issue an API key, recorded by its SHA-256 (hex); `render` builds the JSON answer from the row of the key.

    Raises `Forbidden` for a key with scopes that the issuer does not have, `UnknownName` for a project or a service
    account that does not exist, and `Conflict` for an archived project, for a disabled service account, and for a
    lifetime above `most`, the maximum that the operator sets.
    """

    async def command(transaction: Transaction) -> Decision:
        account = await _account_of(transaction.conn, wanted)
        against = [
            *_too_long(wanted.lifetime, most),
            *_against_account(wanted, account),
            *await against_projects(transaction.conn, wanted.projects),
        ]
        refuse_if(against)
        fact = _issued(wanted, key_sha256, transaction.now)
        issued = keys.issued(fact, account)
        _refuse_granting(issuer, issued)
        change = Change(stream_of_key(fact.key_id), 0, (fact,))
        return Decision((change,), origin.at(transaction.now), render(issued))

    return command


def replace_key(
    key_id: str,
    key_sha256: str,
    overlap: timedelta,
    origin: Origin,
    render: Callable[[KeyRow], str],
    *,
    issuer: Principal,
) -> Command:
    """Issue a successor of an API key with the same role, projects, scopes and expiry. The replaced key is accepted
    for the period `overlap`, but not after its own expiry. The successor of a key of a service account is a key of the
    same account. `render` builds the JSON answer from the row of the successor.

    Raises `UnknownName`, `Conflict` if the key is revoked, expired or replaced already, or its account is disabled,
    and `Forbidden` if the key has scopes that the issuer does not have.
    """

    async def command(transaction: Transaction) -> Decision:
        row, now = await _locked(transaction.conn, key_id), transaction.now
        refuse_if(against_rotating(issued_key_of(row), now))
        _refuse_granting(issuer, row)
        ends = now + overlap
        # The row of a key of an account has the limits of the account, which are not those of the key.
        same = KeyRequest(row.name, Role(row.role), row.projects, row.scopes)
        if row.service_account is not None:
            same = KeyRequest(row.name, None, service_account=row.service_account)
        account = await _account_of(transaction.conn, same)
        fact = ApiKeyIssued(
            key_id=_new_id(row.name),
            name=row.name,
            key_sha256=key_sha256,
            role=same.role,
            projects=same.projects,
            scopes=same.scopes,
            expires_at=row.expires_at,
            replaces=key_id,
            service_account=same.service_account,
        )
        replaced = ApiKeyReplaced(
            key_id, fact.key_id, ends if row.expires_at is None else min(ends, row.expires_at)
        )
        changes = (
            Change(stream_of_key(key_id), row.version, (replaced,)),
            Change(stream_of_key(fact.key_id), 0, (fact,)),
        )
        return Decision(changes, origin.at(now), render(keys.issued(fact, account)))

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


def set_principal_limits(actor: str, limits: PrincipalLimits, origin: Origin) -> Command:
    """Set all limits of a caller. They apply to every request that begins after this command."""

    async def command(transaction: Transaction) -> Decision:
        version = await principals.version_of(transaction.conn, actor)
        if await principals.limits_of(transaction.conn, actor) == limits:
            return Decision((), origin.at(transaction.now))
        change = Change(stream_of_principal(actor), version, (PrincipalLimitsSet(actor, limits),))
        return Decision((change,), origin.at(transaction.now))

    return command


def _refuse_granting(issuer: Principal, row: KeyRow) -> None:
    if against := against_granting(issuer, Role(row.role), row.scopes):
        raise Forbidden(*against)


def _issued(wanted: KeyRequest, key_sha256: str, now: datetime) -> ApiKeyIssued:
    return ApiKeyIssued(
        key_id=_new_id(wanted.name),
        name=wanted.name,
        key_sha256=key_sha256,
        role=wanted.role,
        projects=wanted.projects,
        scopes=wanted.scopes,
        expires_at=None if wanted.lifetime is None else now + wanted.lifetime,
        service_account=wanted.service_account,
    )


async def _account_of(conn: AsyncConnection, wanted: KeyRequest) -> ServiceAccountRow | None:
    # Without a lock: a key of an account that is disabled meanwhile is refused at each of its requests.
    named = wanted.service_account
    return None if named is None else await service_accounts.find(conn, named)


def _against_account(wanted: KeyRequest, account: ServiceAccountRow | None) -> list[Objection]:
    if wanted.service_account is None:
        return []
    field = "/service_account"
    if account is None:
        return [unknown_service_account(wanted.service_account, field)]
    if account.disabled is not None:
        return [inactive_service_account(account.account, account.disabled, field)]
    return []


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


def issued_key_of(row: KeyRow) -> IssuedKey:
    """Return the columns of an API key's row that decide about its rotation."""
    return IssuedKey(
        row.key_id, row.expires_at, row.revoked, row.successor, row.service_account, row.disabled
    )


def unknown_key(key_id: str) -> UnknownName:
    return UnknownName(Objection("unknown_key_id", f"there is no API key with the id {key_id}"))
