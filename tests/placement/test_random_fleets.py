"""Placement in random fleets, compared with a result that is computed by a check of every slot (ALC-6)."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.creating_together import find_slots_for_many
from control_plane.commands.explaining import groups_of
from control_plane.commands.searching import find_slots, suitable_classes
from control_plane.database import engine_of
from control_plane.decisions.placing.suitability import Demand, Mismatch, Suited, compare
from control_plane.decisions.refusals import Conflict
from control_plane.handle import Transaction
from control_plane.work.slot_counts import count_again
from deploy.embedded.lab_catalogue import SMALL
from deploy.embedded.stack import sqlalchemy_url
from events.offers import SlotClass, offer_of
from events.values import NodeId, SkuName, SlotId, node_of
from tests import matrix
from tests.placement import fleets
from tests.placement.fleets import NOW, Case, HostModel, SlotModel, expected_code, random_case, usable
from tests.servers.postgres import Database
from tests.torture import count, seed

CASES = 20_000
pytestmark = [pytest.mark.timeout(7200 if matrix.is_full() else 120)]


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[AsyncConnection]:
    engine = engine_of(sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False), 1)
    async with engine.connect() as conn:
        yield conn
    await engine.dispose()


async def placed(conn: AsyncConnection, case: Case) -> tuple[SlotId, ...]:
    """Return the slots that placement chooses; none if it refuses the request."""
    try:
        place = await find_slots(Transaction(conn, NOW, wait_for_locked=True), case.wanted)
    except Conflict:
        return ()
    return tuple(each.slot_id for each in place.slots)


def check_order(case: Case, chosen: tuple[SlotId, ...]) -> None:
    """Check that the chosen host is the first in placement order: by the worst of its best slots, and then by the
    number of its usable free slots.
    """
    spreads = case.demand.sku.placement == "spread"

    def rank(host: HostModel) -> tuple[Suited, int, str]:
        suited = sorted(
            each for slot in usable(host, case.demand) if isinstance(each := suits(case, slot), Suited)
        )
        free = sum(slot.state == "free" and not slot.blocked and not slot.excluded for slot in host.slots)
        return suited[case.count - 1], -free if spreads else free, host.name

    suitable = [host for host in case.hosts if expected_code(host, case) == "suitable"]
    assert node_of(chosen[0]) == min(suitable, key=rank).name
    by_id = {slot.id: slot for host in suitable for slot in host.slots}
    best = min(
        sorted(_preference(case, slot) for slot in usable(host, case.demand))[case.count - 1]
        for host in suitable
    )
    worst = max(_preference(case, by_id[slot]) for slot in chosen)
    assert worst == best, "another host has slots with a fabric that is preferred"


def suits(case: Case, slot: SlotModel) -> Suited | Mismatch:
    offer = offer_of(tuple(slot.devices()), slot.numa)
    skus = tuple(SkuName(each) for each in slot.skus)
    return compare(case.demand, SlotClass(skus, slot.vcpus, slot.memory_mib, offer))


def check_slots(case: Case, chosen: tuple[SlotId, ...]) -> None:
    """Check that the chosen slots serve the request, and that it was refused only if no host can serve it."""
    suitable = {
        host.name: usable(host, case.demand) for host in case.hosts if expected_code(host, case) == "suitable"
    }
    if not chosen:
        assert suitable == {}, "the request was refused although a host can serve it"
        return
    assert len({*chosen}) == len(chosen) == case.count
    [host] = {node_of(slot) for slot in chosen}
    assert {*chosen} <= {slot.id for slot in suitable[host]}


def _preference(case: Case, slot: SlotModel) -> int:
    fabrics = case.demand.fabrics
    return fabrics.index(slot.fabric if slot.fabric in fabrics and not slot.is_down else "none")


def cases(usual_share: int, is_varied: Callable[[], bool]) -> Iterator[int]:
    """Yield the numbers of the cases of a test, and of further cases until every outcome has occurred."""
    for number in range(CASES):
        if number >= count(CASES, usual_share) and is_varied():
            return
        yield number


async def test_placement_in_random_fleets_chooses_suitable_slots_and_refuses_only_what_no_node_can_serve(
    conn: AsyncConnection,
) -> None:
    random, outcomes = Random(seed()), Counter[bool]()
    for number in cases(400, lambda: min(outcomes[True], outcomes[False]) > 0):
        case = random_case(random)
        # Numbers that are out of date may change the order of hosts, and never what is possible.
        counted = random.choice((len(case.hosts), len(case.hosts), random.randint(0, len(case.hosts))))
        await fleets.write(conn, case.hosts, counted=counted)
        chosen = await placed(conn, case)
        check_slots(case, chosen)
        if chosen and counted == len(case.hosts):
            check_order(case, chosen)
        await count_again(conn, frozenset(NodeId(host.name) for host in case.hosts))
        groups = await groups_of(conn, case.wanted)
        expected = Counter(expected_code(host, case) for host in case.hosts)
        assert {group.code: group.nodes for group in groups} == expected, f"case {number}"
        for group in groups:
            names = [host.name for host in case.hosts if expected_code(host, case) == group.code]
            assert group.example == min(names)
        outcomes[bool(chosen)] += 1
        await conn.rollback()
    assert min(outcomes[True], outcomes[False]) > 0, "all cases had the same outcome"


async def test_node_with_too_few_suitable_slots_because_a_port_is_down_is_explained_by_its_port(
    conn: AsyncConnection,
) -> None:
    slots = [
        SlotModel(
            id=SlotId(f"n0/{index}"),
            skus=("a",),
            vcpus=2,
            memory_mib=192,
            numa=0,
            gpus=[],
            fabric="ib",
            fabric_numa=0,
            fabric_down=index == 1,
            state="free",
            blocked=False,
            excluded=False,
        )
        for index in range(2)
    ]
    sku = msgspec.structs.replace(SMALL, fabric="ib")
    case = Case([HostModel("n0", slots)], Demand(SkuName("a"), sku, ("ib",)), 2)
    await fleets.write(conn, case.hosts, counted=1)
    assert [group.code for group in await groups_of(conn, case.wanted)] == ["fabric_down"]


async def test_placement_of_several_requests_in_random_fleets_chooses_as_if_they_were_placed_in_turn(
    conn: AsyncConnection,
) -> None:
    random, placed_counts = Random(seed()), Counter[int]()
    for number in cases(200, lambda: min(placed_counts[0], placed_counts[1], several(placed_counts)) > 0):
        case = random_case(random)
        counted = random.choice((len(case.hosts), len(case.hosts), random.randint(0, len(case.hosts))))
        await fleets.write(conn, case.hosts, counted=counted)
        found = await find_slots_for_many(
            conn, case.wanted, await suitable_classes(conn, case.wanted.demand), 4
        )
        by_id = {slot.id: slot for host in case.hosts for slot in host.slots}
        for each in found:
            chosen = tuple(placed.slot_id for placed in each.slots)
            check_slots(case, chosen)
            if counted == len(case.hosts):
                check_order(case, chosen)
            for slot in chosen:
                assert by_id[slot].state == "free", f"case {number}: two requests got slot {slot}"
                by_id[slot].state = "claimed"
        if counted == len(case.hosts) and len(found) < 4:
            check_slots(case, ())
        placed_counts[len(found)] += 1
        await conn.rollback()
    assert min(placed_counts[0], placed_counts[1], several(placed_counts)) > 0, (
        f"too few outcomes: {placed_counts}"
    )


def several(placed_counts: Counter[int]) -> int:
    """Return the number of cases in which more than one request was placed."""
    return sum(placed_counts[each] for each in (2, 3, 4))
