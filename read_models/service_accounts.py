"""`read.service_account`: the service accounts. The table is written in the transaction that appends the event of the
account to the ledger, so that the keys of an account are refused from the commit of its disablement on.
"""

from collections.abc import Mapping
from typing import Any, assert_never

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from events.ledger.tables import metadata
from events.service_accounts import (
    ServiceAccountCreated,
    ServiceAccountDisabled,
    ServiceAccountEnabled,
    ServiceAccountFact,
)
from events.values import ProjectId, ServiceAccountId
from read_models.pages import keyset
from read_models.rows import Patch

service_account = sa.Table(
    "service_account",
    metadata,
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("projects", ARRAY(sa.Text), nullable=False),
    sa.Column("scopes", ARRAY(sa.Text), nullable=False),
    sa.Column("disabled", sa.Text),
    schema="read",
)


class ServiceAccountRow:
    """The row of a service account in `read.service_account`. `disabled` is the reason why it was disabled, None while
    it is active. `projects` and `scopes` limit the account; if they are empty, they limit nothing.
    """

    def __init__(self, row: Mapping[Any, Any]) -> None:
        self.account = ServiceAccountId(row["account"])
        self.version: int = row["version"]
        self.description: str = row["description"]
        self.role: str = row["role"]
        self.projects = tuple(ProjectId(each) for each in row["projects"])
        self.scopes: tuple[str, ...] = tuple(row["scopes"])
        self.disabled: str | None = row["disabled"]


def patch(version: int, fact: ServiceAccountFact) -> Patch:
    """Return the patch that a fact applies to the row of its account. `version` is the fact's version in its stream."""
    match fact:
        case ServiceAccountCreated():
            born = {name: getattr(fact, name) for name in ("description", "role", "projects", "scopes")}
            return Patch(fact.account, {"version": version}, born)
        case ServiceAccountDisabled(reason=reason):
            return Patch(fact.account, {"version": version, "disabled": reason})
        case ServiceAccountEnabled():
            return Patch(fact.account, {"version": version, "disabled": None})
        case _:
            assert_never(fact)


def created(fact: ServiceAccountCreated) -> ServiceAccountRow:
    """Return the row that is added when a service account is created."""
    made = patch(1, fact)
    return ServiceAccountRow({"account": fact.account, "disabled": None, **made.columns, **(made.born or {})})


async def find(
    conn: AsyncConnection, account: ServiceAccountId, *, lock: bool = False
) -> ServiceAccountRow | None:
    """Return the row of the service account with this id, or None if there is no such account. With `lock` the row is
    locked until the transaction ends.
    """
    query = sa.select(service_account).where(service_account.c.account == account)
    row = (await conn.execute(query.with_for_update() if lock else query)).mappings().one_or_none()
    return None if row is None else ServiceAccountRow(row)


async def page(
    conn: AsyncConnection,
    *,
    after: str | None,
    limit: int,
    descending: bool = False,
    role: str | None = None,
    project: ProjectId | None = None,
) -> list[ServiceAccountRow]:
    """Return one page of service accounts, ordered by id. Each filter that is not None selects: accounts with this
    role, and accounts that are limited to this project.
    """
    query = sa.select(service_account)
    if role is not None:
        query = query.where(service_account.c.role == role)
    if project is not None:
        query = query.where(service_account.c.projects.any_() == project)
    place = None if after is None else (after,)
    query = keyset(query, [service_account.c.account], place, limit, descending=descending)
    return [ServiceAccountRow(row) for row in (await conn.execute(query)).mappings()]
