"""Nodes that become unusable between the statement that finds their slots and the check of the node (ALC-6)."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.commands.searching import HOSTS, find_slots
from control_plane.database import engine_of
from control_plane.decisions.placing.explanation import Unplaced
from control_plane.decisions.placing.suitability import Demand
from control_plane.handle import Transaction
from control_plane.work import placeable
from deploy.embedded.lab_catalogue import SMALL
from deploy.embedded.stack import sqlalchemy_url
from events.values import NodeId, SkuName
from read_models import nodes
from tests.placement import fleets
from tests.placement.fleets import NOW, Case, HostModel, free_slot
from tests.servers.postgres import Database

NAMES: Final = [f"n{number}" for number in range(HOSTS + 1)]
"""Names of the nodes in placement order; one search reads the slots of the first `HOSTS` nodes only."""


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    engine = engine_of(sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False), 2)
    yield engine
    await engine.dispose()


@pytest.fixture
async def case(engine: AsyncEngine) -> Case:
    """A stored fleet of nodes with one free slot each, and a request for one slot."""
    sku = msgspec.structs.replace(SMALL, vcpus=1, memory_mib=96)
    case = Case([_host(name) for name in NAMES], Demand(SkuName("a"), sku, ("none",)), 1)
    async with engine.begin() as conn:
        await fleets.write(conn, case.hosts, counted=len(case.hosts))
    return case


def _host(name: str) -> HostModel:
    return HostModel(name, [free_slot(name, 0)])


def cordon_before_the_check(monkeypatch: pytest.MonkeyPatch, engine: AsyncEngine, names: list[str]) -> None:
    """Cordon these nodes between the search and the check of the first node that it found."""
    check, left = placeable.hold_open, [*names]

    async def cordon_and_check(conn: AsyncConnection, node: NodeId) -> bool:
        async with engine.begin() as other:
            named = nodes.node.c.node_id.in_(left)
            await other.execute(sa.update(nodes.node).where(named).values(cordoned="maintenance"))
        left.clear()
        return await check(conn, node)

    monkeypatch.setattr(placeable, "hold_open", cordon_and_check)


async def test_request_is_placed_on_another_node_if_all_nodes_of_a_search_are_cordoned_during_it(
    engine: AsyncEngine, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordon_before_the_check(monkeypatch, engine, NAMES[:-1])
    async with engine.connect() as conn:
        found = await find_slots(Transaction(conn, NOW, wait_for_locked=True), case.wanted)
    assert [each.slot_id for each in found.slots] == [f"{NAMES[-1]}/0"]


async def test_request_is_refused_with_the_cordon_as_reason_if_all_nodes_are_cordoned_during_its_search(
    engine: AsyncEngine, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    cordon_before_the_check(monkeypatch, engine, NAMES)
    async with engine.connect() as conn:
        with pytest.raises(Unplaced) as refused:
            await find_slots(Transaction(conn, NOW, wait_for_locked=True), case.wanted)
    assert [(each.code, each.nodes) for each in refused.value.groups] == [("cordoned", len(NAMES))]
