"""`read.api_key`: the API keys. The table is written in the transaction that appends the key's event to the ledger, so
that a key works from its commit on, and is refused from the commit of its revocation on.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, assert_never

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from events.access import AccessFact, ApiKeyIssued, ApiKeyReplaced, ApiKeyRevoked
from events.ledger.connection import fetch_rows, ledger_connection
from events.ledger.tables import metadata
from events.values import ProjectId, ServiceAccountId
from read_models.pages import keyset
from read_models.rows import Patch
from read_models.service_accounts import ServiceAccountRow, service_account

api_key = sa.Table(
    "api_key",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("key_sha256", sa.Text, nullable=False, unique=True),
    sa.Column("role", sa.Text),
    sa.Column("projects", ARRAY(sa.Text), nullable=False),
    sa.Column("scopes", ARRAY(sa.Text), nullable=False),
    sa.Column("expires_at", sa.DateTime(timezone=True)),
    sa.Column("replaces", sa.Text),
    sa.Column("service_account", sa.Text),
    sa.Column("successor", sa.Text),
    sa.Column("revoked", sa.Text),
    schema="read",
)


# The account is joined here, so that the authentication of a request needs one query. A key of an account has no role,
# projects or scopes of its own.
_BY_SECRETS: Final = """
select key.key_id, key.version, key.name, key.key_sha256, key.expires_at, key.replaces, key.service_account,
  key.successor, key.revoked, coalesce(account.role, key.role) as role,
  coalesce(account.projects, key.projects) as projects, coalesce(account.scopes, key.scopes) as scopes,
  account.disabled, coalesce(key.expires_at <= clock_timestamp(), false) as expired
from read.api_key key left join read.service_account account on account.account = key.service_account
where key.key_sha256 = any(%b::text[])
"""
_effective_role = sa.func.coalesce(service_account.c.role, api_key.c.role)
_effective_projects = sa.func.coalesce(service_account.c.projects, api_key.c.projects, type_=ARRAY(sa.Text))
_WITH_ACCOUNT: Final = sa.select(
    *(column for column in api_key.c if column.name not in ("role", "projects", "scopes")),
    _effective_role.label("role"),
    _effective_projects.label("projects"),
    sa.func.coalesce(service_account.c.scopes, api_key.c.scopes).label("scopes"),
    service_account.c.disabled,
).select_from(api_key.outerjoin(service_account, service_account.c.account == api_key.c.service_account))


class KeyRow:
    """The row of an API key in `read.api_key`, with the limits of its service account if it has one.

    `revoked` is the reason of its revocation, and `disabled` that of the disablement of its account. `role`, `projects`
    and `scopes` are those of the account at the time of the query, or, without an account, those of the key. Empty
    `projects` or `scopes` limit nothing.
    """

    def __init__(self, row: Mapping[Any, Any]) -> None:
        self.key_id: str = row["key_id"]
        self.version: int = row["version"]
        self.name: str = row["name"]
        self.role: str = row["role"]
        self.projects = tuple(ProjectId(each) for each in row["projects"])
        self.scopes: tuple[str, ...] = tuple(row["scopes"])
        self.expires_at: datetime | None = row["expires_at"]
        self.replaces: str | None = row["replaces"]
        self.service_account: ServiceAccountId | None = row["service_account"]
        self.disabled: str | None = row["disabled"]
        self.successor: str | None = row["successor"]
        self.revoked: str | None = row["revoked"]

    @property
    def actor(self) -> str:
        """The holder of the key as recorded in the ledger."""
        if self.service_account is not None:
            return f"service-account:{self.service_account}"
        return f"key:{self.key_id}"


def patch(version: int, fact: AccessFact) -> Patch:
    """Return the patch that a fact applies to the row of its API key. `version` is the fact's version in its stream."""
    match fact:
        case ApiKeyIssued():
            born = {
                name: getattr(fact, name)
                for name in fact.__struct_fields__
                if name not in ("key_id", "expires_at")
            }
            return Patch(fact.key_id, {"version": version, "expires_at": fact.expires_at}, born)
        case ApiKeyReplaced(successor=successor, expires_at=expires_at):
            return Patch(fact.key_id, {"version": version, "successor": successor, "expires_at": expires_at})
        case ApiKeyRevoked(reason=reason):
            return Patch(fact.key_id, {"version": version, "revoked": reason})
        case _:
            assert_never(fact)


def issued(fact: ApiKeyIssued, account: ServiceAccountRow | None = None) -> KeyRow:
    """Return the row that is added when an API key is issued; `account` is the service account of the key, if it has
    one.
    """
    made = patch(1, fact)
    row: dict[str, object] = {"key_id": fact.key_id, "successor": None, "revoked": None, "disabled": None}
    row |= {**made.columns, **(made.born or {})}
    if account is not None:
        row |= {name: getattr(account, name) for name in ("role", "projects", "scopes", "disabled")}
    return KeyRow(row)


async def by_secrets(conn: AsyncConnection, key_sha256: Collection[str]) -> dict[str, tuple[KeyRow, bool]]:
    """Return the API keys with the given SHA-256 hashes (hex). The result maps each hash to the row of its key, and to
    whether the key has expired by the clock of the database.
    """
    # psycopg directly: SQLAlchemy would take a larger part of the time of a read than the query.
    ledger = await ledger_connection(conn)
    rows = await fetch_rows(ledger, dict[str, Any], _BY_SECRETS, [[*key_sha256]], prepare=True)
    return {row["key_sha256"]: (KeyRow(row), row["expired"]) for row in rows}


async def find(conn: AsyncConnection, key_id: str, *, lock: bool = False) -> KeyRow | None:
    """Return the row of the API key with this id, or None if there is no such key. With `lock` the row is locked until
    the transaction ends.
    """
    query = _WITH_ACCOUNT.where(api_key.c.key_id == key_id)
    row = (await conn.execute(query.with_for_update(of=api_key) if lock else query)).mappings().one_or_none()
    return None if row is None else KeyRow(row)


async def page(
    conn: AsyncConnection,
    *,
    after: str | None,
    limit: int,
    descending: bool = False,
    role: str | None = None,
    project: ProjectId | None = None,
    revoked: bool | None = None,
    account: ServiceAccountId | None = None,
) -> list[KeyRow]:
    """Return one page of API keys, ordered by id. Each filter that is not None selects: keys with this role, keys that
    are limited to this project, keys that are revoked or not, and keys of this service account.
    """
    query = _WITH_ACCOUNT
    if role is not None:
        query = query.where(_effective_role == role)
    if project is not None:
        query = query.where(sa.literal(project) == sa.any_(_effective_projects))
    if account is not None:
        query = query.where(api_key.c.service_account == account)
    if revoked is not None:
        query = query.where(api_key.c.revoked.is_not(None) if revoked else api_key.c.revoked.is_(None))
    place = None if after is None else (after,)
    query = keyset(query, [api_key.c.key_id], place, limit, descending=descending)
    return [KeyRow(row) for row in (await conn.execute(query)).mappings()]
