"""Create several allocations in one transaction.

Each statement of a transaction costs a round trip and more processor time for its preparation than for its rows, and
each commit waits for the disk. Creations that share a transaction share both, and they do not compete for the free
slots of the same nodes.

A creation is decided here only if it can be carried out at once. Everything else is left to `create_allocation`:
requests that depend on more than free slots, requests that are refused, and requests for which no unlocked slot was
found.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.admission.quotas import (
    HeldProject,
    Quotas,
    held_projects,
    last_check,
    projects_queries,
)
from control_plane.commands.admission.reservations import Claimable
from control_plane.commands.catalogue import entries_of
from control_plane.commands.placement_request import NewAllocation, PlacementRequest
from control_plane.commands.placing import Option, RenderNew, option_of
from control_plane.commands.searching import (
    HOSTS,
    FoundSlots,
    first_hosts,
    free_slots_of,
    placed_slot,
    suitable_among,
)
from control_plane.decisions.catalogue import specify
from control_plane.decisions.leases import against_length, limits_of, limits_of_project
from control_plane.decisions.placing.choice import Candidate, choose, fits
from control_plane.decisions.placing.suitability import Suited
from control_plane.handle import DecideTogether, Decision, Decisions, Transaction
from control_plane.origin import Origin
from control_plane.work.placeable import hold_all_open
from events.allocations import AllocationSpecified
from events.derived.quotas import NOTHING_USED, QuotaUse
from events.values import NodeId, ProjectId, SlotId, StreamId, node_of
from read_models import catalogue, slots
from read_models.compiled import Query, Rows
from read_models.slots import SlotRow

ROUNDS: Final = 3
"""Number of times that further nodes are read, because the numbers of free slots of the first ones were out of date."""
FURTHER: Final = 32
"""Number of nodes that a search with a limit of rows reads in addition, so that a search for few slots gets beyond
the nodes that others have just filled.
"""
_NOT_APART: Final = frozenset[NodeId]()


class Creation(NamedTuple):
    """The arguments of `create_allocation`."""

    new: NewAllocation
    origin: Origin
    render: RenderNew


def may_share(new: NewAllocation) -> bool:
    """Return whether a new allocation can be created together with others: it needs only free slots of its SKU."""
    request = new.request
    return not (new.alternative_skus or new.ingress_rules or request.apart_from or request.node is not None)


def _reads(creations: Sequence[Creation]) -> tuple[Query, ...]:
    """Return the queries that lock and read the projects, callers and entries of creations, and that read the classes
    of all slots.
    """
    entries = {name for each in creations for name in entries_of(each.new.request, each.new.app_profile)}
    named = catalogue.find_query(sorted(entries), lock="share")
    return *projects_queries(_pairs(creations)), named, (slots.CLASSES, {})


def _pairs(creations: Sequence[Creation]) -> list[tuple[ProjectId, str]]:
    return sorted({(each.new.request.project, each.origin.actor) for each in creations})


async def _decide(transaction: Transaction, creations: Sequence[Creation], rows: Sequence[Rows]) -> Decisions:
    conn = transaction.conn
    *of_projects, of_entries, of_classes = rows
    held = held_projects(of_projects, _pairs(creations))
    found_entries = {(each.kind, each.name): each for each in map(catalogue.entry_in, of_entries)}
    classes = slots.classes_in(of_classes)
    requested: dict[StreamId, QuotaUse] = {}
    decisions: dict[int, Decision] = {}
    taken = frozenset[SlotId]()
    used = list[tuple[Quotas, QuotaUse, Decimal]]()
    for alike in _alike(creations):
        first = creations[alike[0]].new
        entries = {
            kind: found_entries[kind, name]
            for kind, name in entries_of(first.request, first.app_profile)
            if (kind, name) in found_entries
        }
        options: dict[int, Option] = {}
        for index in alike:
            new, origin, _ = creations[index]
            project, quotas = new.request.project, held[new.request.project, origin.actor].quotas
            specified = specify(new.request, new.app_profile, entries)
            if not isinstance(specified, AllocationSpecified) or not _needs_only_slots(
                project, held[project, origin.actor]
            ):
                continue
            limits = limits_of(specified) + limits_of_project(project, quotas.project_limits)
            if against_length(new.request.lease_seconds, limits):
                continue
            limited = new.placed_as(specified, _NOT_APART), Claimable(project, {})
            option = option_of(new, specified, limited, quotas.after(requested), origin.actor)
            if option.refusal is None:
                options[index] = option
                _add(requested, option)
        if not options:
            continue
        wanted = next(iter(options.values())).wanted
        suitable = suitable_among(classes, wanted.demand)
        found = await find_slots_for_many(conn, wanted, suitable, len(options), taken)
        taken |= {slot.slot_id for each in found for slot in each.slots}
        for (index, option), placed in zip(options.items(), found, strict=False):
            _, origin, render = creations[index]
            decisions[index] = option.placed_in(placed, transaction.now, origin, render)
            used.append((option.quotas, option.amounts, option.cost))
    return Decisions([decisions.get(index) for index in range(len(creations))], last_check(used))


CREATE_TOGETHER: Final = DecideTogether(_reads, _decide)
"""Decides several creations, each of which `may_share`. A creation without a decision must run by itself."""


def _needs_only_slots(project: ProjectId, held: HeldProject) -> bool:
    """Return whether a request in a project depends on its amounts and on free slots only: not on a budget, on
    reservations of other projects, or on requests that wait for capacity.
    """
    quotas = held.quotas
    return not (
        held.objections
        or held.any_waiting
        or quotas.project_limits.budget_per_month is not None
        or any(holder != project and skus for holder, skus in quotas.reserved.items())
    )


def _alike(creations: Sequence[Creation]) -> Iterator[list[int]]:
    """Yield the indexes of creations for which the same slots are suitable."""
    groups = defaultdict[object, list[int]](list)
    for index, (new, _, _) in enumerate(creations):
        request = new.request
        groups[request.sku, request.image, new.app_profile, request.network_mode, request.slot_count].append(
            index
        )
    yield from groups.values()


def _add(requested: dict[StreamId, QuotaUse], option: Option) -> None:
    for quota in option.quotas.quotas:
        before = requested.get(quota.stream, NOTHING_USED)
        requested[quota.stream] = before.plus(option.amounts)


async def find_slots_for_many(
    conn: AsyncConnection,
    wanted: PlacementRequest,
    suitable: dict[str, Suited],
    count: int,
    taken: frozenset[SlotId] = frozenset(),
) -> list[FoundSlots]:
    """Return slots for at most `count` requests that are like `wanted`, in placement order, with locked rows.
    `suitable` are the suitable classes (`suitable_classes`).

    `wanted` states how many slots each request needs. Rows that other transactions have locked are skipped. Slots in
    `taken` are left out: this transaction has found them before, and their rows do not show it yet.
    """
    found = list[FoundSlots]()
    # With several slots on one node, it is not known how many rows are left over on each node, and spreading changes
    # the order of nodes with each slot: then the rows of all nodes are needed.
    is_cut = wanted.request.slot_count == 1 and wanted.demand.sku.placement != "spread"
    for level in sorted({*suitable.values()}):
        keys = [key for key, suited in suitable.items() if suited <= level]
        tried = list[NodeId]()
        for _ in range(ROUNDS):
            if (left := count - len(found)) == 0:
                return found
            # More nodes than are needed: others may have locked or just filled the first ones. If the rows of all nodes
            # are read, they are also locked for others, so the nodes are fewer.
            needed = left + len(taken)
            most_hosts = 4 * needed + FURTHER if is_cut else 2 * needed + HOSTS
            hosts = await first_hosts(conn, wanted, keys, tried, most_hosts)
            if not hosts:
                break
            taken_on = Counter(map(node_of, taken))
            free = {host: number - taken_on[host] for host, number in hosts.items()}
            # The rows of slots in `taken` are read too, because this transaction has locked them.
            most = left + sum(taken_on[host] for host in hosts) if is_cut else None
            in_order = sorted(hosts, key=lambda host: (free[host], host))
            rows = await free_slots_of(conn, wanted, keys, in_order, most)
            rows = {slot: row for slot, row in rows.items() if slot not in taken}
            open_hosts = await hold_all_open(conn, {*map(node_of, rows)}) if rows else frozenset()
            rows = {slot: row for slot, row in rows.items() if node_of(slot) in open_hosts}
            chosen = _distributed(rows, suitable, free, wanted, left)
            found += chosen
            taken |= {placed.slot_id for each in chosen for placed in each.slots}
            tried += hosts
    return found


def _distributed(
    rows: dict[SlotId, SlotRow],
    suitable: dict[str, Suited],
    free: dict[NodeId, int],
    wanted: PlacementRequest,
    count: int,
) -> list[FoundSlots]:
    """Return slots for at most `count` requests, as if they were placed one after the other."""
    candidates = {slot: Candidate(suitable[row.class_], len(row.failures)) for slot, row in rows.items()}
    free, each_needs, found = dict(free), wanted.request.slot_count, list[FoundSlots]()
    while len(found) < count and fits(candidates, each_needs):
        chosen = choose(candidates, free, each_needs, wanted.demand)
        for slot in chosen:
            del candidates[slot]
        free[node_of(chosen[0])] -= each_needs
        placed = tuple(placed_slot(rows[slot]) for slot in chosen)
        classes = frozenset(rows[slot].class_ for slot in chosen)
        found.append(FoundSlots(placed, tuple(rows[slot].version for slot in chosen), (), classes))
    return found
