"""Searches for the slots of several requests: they get beyond nodes with slots that another transaction has locked, and
beyond slots that they have found before (ALC-6).
"""

import dataclasses
from collections.abc import AsyncIterator
from typing import Final

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.commands.creating_together import find_slots_for_many
from control_plane.commands.searching import suitable_classes
from control_plane.database import engine_of
from control_plane.decisions.placing.suitability import Demand
from deploy.embedded.lab_catalogue import SMALL
from deploy.embedded.stack import sqlalchemy_url
from events.values import SkuName
from read_models import slots
from tests.placement import fleets
from tests.placement.fleets import Case, HostModel, free_slot
from tests.servers.postgres import Database

NODES: Final = [f"n{number:03}" for number in range(100)]
SLOTS_OF_A_NODE: Final = 3
LEFT: Final = f"{NODES[0]}/0"
"""The only slot of the first half of the nodes that the other transaction has not locked."""


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    engine = engine_of(sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False), 3)
    yield engine
    await engine.dispose()


async def _lock(conn: AsyncConnection, *conditions: sa.ColumnElement[bool]) -> set[str]:
    """Lock the rows of slots that no other transaction has locked; return their ids."""
    query = sa.select(slots.slot.c.slot_id).where(*conditions).with_for_update(skip_locked=True)
    return {*(await conn.scalars(query))}


async def test_search_beyond_nodes_with_locked_slots_finds_slots_and_locks_no_more_than_it_needs(
    engine: AsyncEngine,
) -> None:
    sku = msgspec.structs.replace(SMALL, vcpus=1, memory_mib=96)
    hosts = [HostModel(name, [free_slot(name, index) for index in range(SLOTS_OF_A_NODE)]) for name in NODES]
    case = Case(hosts, Demand(SkuName("a"), sku, ("none",)), 1)
    async with engine.begin() as conn:
        await fleets.write(conn, hosts, counted=len(hosts))
    async with engine.connect() as other, engine.connect() as conn, engine.connect() as third:
        first_half = slots.slot.c.node_id < NODES[len(NODES) // 2]
        locked = await _lock(other, first_half, slots.slot.c.slot_id != LEFT)
        found = await find_slots_for_many(
            conn, case.wanted, await suitable_classes(conn, case.wanted.demand), 3
        )
        chosen = {slot.slot_id for each in found for slot in each.slots}
        assert len(chosen) == 3
        assert LEFT in chosen
        assert len(await _lock(third)) == len(NODES) * SLOTS_OF_A_NODE - len(locked) - len(chosen)


async def test_search_for_several_requests_finds_slots_of_a_less_preferred_class_on_a_node_with_slots_found_before(
    engine: AsyncEngine,
) -> None:
    sku = msgspec.structs.replace(SMALL, vcpus=1, memory_mib=96, fabric="ib")
    node_slots = [
        dataclasses.replace(free_slot("n0", index), fabric="ib" if index < 2 else "ethernet")
        for index in range(4)
    ]
    case = Case([HostModel("n0", node_slots)], Demand(SkuName("a"), sku, ("ib", "ethernet")), 1)
    async with engine.begin() as conn:
        await fleets.write(conn, case.hosts, counted=1)
        suitable = await suitable_classes(conn, case.wanted.demand)
        found = await find_slots_for_many(conn, case.wanted, suitable, 4)
    assert [slot.slot_id for each in found for slot in each.slots] == [each.id for each in node_slots]
