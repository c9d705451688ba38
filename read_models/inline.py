"""Inline read models: tables that the control plane must read in their newest state when it handles a request. They are
written in the transaction that appends events to the ledger, before these events.

A rebuild computes the same rows from the events in the ledger.
"""

from collections.abc import Iterable
from typing import Final, get_args

from sqlalchemy.ext.asyncio import AsyncConnection

from events.access import AccessFact
from events.allocations import AllocationDequeued, AllocationQueued
from events.billing.periods import BillingFact
from events.derived.quotas import COUNTED
from events.entries import EntryFact
from events.facts import Fact
from events.nodes import NodeFact
from events.orders import OrderFact
from events.principals import PrincipalFact
from events.projects import ProjectFact
from events.service_accounts import ServiceAccountFact
from events.sessions import SessionFact
from events.slots import SlotFact
from read_models import (
    catalogue,
    keys,
    nodes,
    principals,
    projects,
    quota_use,
    service_accounts,
    sessions,
    slots,
    waiting,
)
from read_models.rows import Patched, Statement, Summed, patch_statements, sum_statements
from read_models.usage import periods

NODES: Final = Patched(nodes.node, (*get_args(NodeFact), *get_args(OrderFact)), nodes.patch)
SLOTS: Final = Patched(slots.slot, get_args(SlotFact), slots.patch)
KEYS: Final = Patched(keys.api_key, get_args(AccessFact), keys.patch)
PRINCIPALS: Final = Patched(principals.principal, get_args(PrincipalFact), principals.patch)
CATALOGUE: Final = Patched(catalogue.catalogue_entry, get_args(EntryFact), catalogue.patch)
PROJECTS: Final = Patched(projects.project, get_args(ProjectFact), projects.patch)
SERVICE_ACCOUNTS: Final = Patched(
    service_accounts.service_account, get_args(ServiceAccountFact), service_accounts.patch
)
SESSIONS: Final = Patched(sessions.session, get_args(SessionFact), sessions.patch)
BILLING: Final = Patched(periods.billing_period, (BillingFact,), periods.patch)
WAITING: Final = Patched(waiting.waiting, (AllocationQueued, AllocationDequeued), waiting.patch)
QUOTA_USE: Final = Summed(quota_use.quota_use, COUNTED, quota_use.amounts)


def statements(conn: AsyncConnection, facts: Iterable[tuple[int, Fact]]) -> list[Statement]:
    """Return the statements that apply facts to the rows of every inline read model, in their order. Each fact is
    paired with its version in its stream.
    """
    numbered = list(facts)
    tables = (
        NODES,
        SLOTS,
        KEYS,
        PRINCIPALS,
        PROJECTS,
        CATALOGUE,
        SERVICE_ACCOUNTS,
        SESSIONS,
        BILLING,
        WAITING,
    )
    patches = [
        statement
        for each in tables
        for statement in patch_statements(conn, each.table, each.patches(numbered))
    ]
    # Last, because these rows are the only ones that requests of the same project share.
    return patches + sum_statements(conn, QUOTA_USE.table, QUOTA_USE.amounts_of(numbered))
