"""The order of waiting requests, compared with a brute-force search, on random fleets and queues (ALC-13).

The model of a fleet shares no code with placement: a node is a list of the times at which its slots become free.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

import pytest
from msgspec.structs import replace

from control_plane.decisions.first_release import implied_specification
from control_plane.decisions.placing.explanation import unplaced
from control_plane.decisions.placing.suitability import Demand
from control_plane.decisions.public_addresses import AddressRequest, IngressRequest, PortRequest
from control_plane.decisions.quotas import NotAdmitted
from control_plane.decisions.refusals import Conflict, Objection
from control_plane.decisions.waiting import (
    MOST_KEPT,
    MOST_TRIED,
    Keep,
    Kept,
    Outcome,
    QueuedRequest,
    Try,
    kept_from,
    may_wait,
    one_pass,
    queued_ingress,
    requested_ingress,
)
from deploy.embedded.lab_catalogue import SMALL
from events.allocations import AllocationQueued
from events.derived.waiting import Place
from events.facts import Reason
from events.values import AllocationId, IngressId, Ipv4Subnet, NodeId, SkuName
from tests.decisions.histories import REQUESTED
from tests.torture import count, seed

NOW: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CLASSES: Final = frozenset({"class"})
CASES: Final = 20_000


def request(
    number: int, *, slots: int, minutes: int, priority: int = 0, at: int = 0, sku: str = "a"
) -> QueuedRequest:
    name = AllocationId(f"alc-{number:026}")
    asked = replace(
        REQUESTED, allocation_id=name, sku=SkuName(sku), slot_count=slots, lease_seconds=60 * minutes
    )
    queued_at = NOW + timedelta(minutes=at)
    queued = AllocationQueued(
        name, asked.project, priority, Reason("no_capacity", "full"), queued_at, queued_at + timedelta(days=1)
    )
    return QueuedRequest(asked, implied_specification(REQUESTED), queued, "key:test")


@dataclass
class Model:
    """A fleet: for each slot of a node, the minute at which it becomes free. `kept` are the nodes kept for requests."""

    nodes: dict[NodeId, list[int]]
    minute: int = 0
    waiting: list[QueuedRequest] = field(default_factory=list)
    kept: dict[AllocationId, Kept] = field(default_factory=dict)
    started: dict[AllocationId, int] = field(default_factory=dict)

    @property
    def queue(self) -> list[QueuedRequest]:
        """The waiting requests in their order, as the requirement states it: priority, then age, then id."""
        return sorted(
            self.waiting,
            key=lambda each: (-each.queued.priority, each.queued.queued_at, each.queued.allocation_id),
        )

    def hosts(self, each: QueuedRequest) -> list[NodeId]:
        """Return the nodes on which a request fits now, without those that are kept for another request."""
        end = NOW + timedelta(minutes=self.minute, seconds=each.request.lease_seconds)
        excluded = kept_from(self.kept.values(), each.place, CLASSES, end)
        free = {name: sum(at <= self.minute for at in slots) for name, slots in self.nodes.items()}
        return [
            name for name in sorted(free) if free[name] >= each.request.slot_count and name not in excluded
        ]

    def place(self, each: QueuedRequest) -> Outcome:
        """Place a request on the first node on which it fits, and check that no request before it in the queue fits on
        any node.
        """
        hosts = self.hosts(each)
        if not hosts:
            return Outcome.NO_CAPACITY
        ahead = self.queue[: self.queue.index(each)]
        assert [other for other in ahead if self.hosts(other)] == [], "a request overtook one that fits"
        slots = self.nodes[hosts[0]]
        free = [number for number, at in enumerate(slots) if at <= self.minute][: each.request.slot_count]
        assert len(free) == each.request.slot_count, "a request got only some of its slots"
        for number in free:
            slots[number] = self.minute + each.request.lease_seconds // 60
        self.waiting.remove(each)
        self.started[each.queued.allocation_id] = self.minute
        self.kept.pop(each.queued.allocation_id, None)
        return Outcome.PLACED

    def keep(self, each: QueuedRequest) -> None:
        """Keep for a request the node on which it fits earliest. Nodes that are kept for another request are not
        considered.
        """
        end = NOW + timedelta(minutes=self.minute, seconds=each.request.lease_seconds)
        excluded = kept_from(self.kept.values(), each.place, CLASSES, end)
        first = [
            (max(self.minute, sorted(slots)[each.request.slot_count - 1]), name)
            for name, slots in self.nodes.items()
            if len(slots) >= each.request.slot_count and name not in excluded
        ]
        self.kept.pop(each.queued.allocation_id, None)
        if first:
            minute, node = min(first)
            until = NOW + timedelta(minutes=minute)
            self.kept[each.queued.allocation_id] = Kept(each.place, node, CLASSES, until)

    def make_pass(self) -> None:
        steps, kept, outcome = one_pass(self.queue), list[AllocationId](), None
        while True:
            try:
                step = next(steps) if outcome is None else steps.send(outcome)
            except StopIteration:
                break
            match step:
                case Try(request=each):
                    outcome = self.place(each)
                case Keep(request=each):
                    self.keep(each)
                    kept.append(each.queued.allocation_id)
                    outcome = Outcome.NO_CAPACITY
        self.kept = {name: each for name, each in self.kept.items() if name in kept}


def random_model(random: Random) -> tuple[Model, list[tuple[int, QueuedRequest]]]:
    """Return a random fleet that is partly in use, and the requests that arrive, with the minute of each."""
    nodes = {
        NodeId(f"n{number}"): [random.choice([0, random.randint(1, 30)]) for _ in range(random.randint(1, 4))]
        for number in range(random.randint(1, 4))
    }
    largest = max(map(len, nodes.values()))
    arrivals = [
        (
            minute,
            request(
                number,
                slots=random.randint(1, largest),
                minutes=random.randint(1, 20),
                priority=random.choice([0, 0, 0, 1, -1]),
                at=minute,
                sku=random.choice("ab"),
            ),
        )
        for number, minute in enumerate(sorted(random.randint(0, 40) for _ in range(random.randint(1, 12))))
    ]
    return Model(nodes), arrivals


def test_every_request_starts_in_its_turn_and_the_first_at_the_time_it_was_promised() -> None:
    """In random fleets, no request overtakes one that fits, each gets all its slots on one
    node, and none waits permanently. The first of the queue starts at the latest when it was expected to, unless one
    with a higher priority arrives.
    """
    random = Random(seed())
    for _ in range(count(CASES, 100)):
        model, arrivals = random_model(random)
        promised: dict[AllocationId, int] = {}
        everything = [each for _, each in arrivals]
        while arrivals or model.waiting:
            assert model.minute < 1000, f"requests wait permanently: {model}"
            new = [each for minute, each in arrivals if minute == model.minute]
            arrivals = [(minute, each) for minute, each in arrivals if minute > model.minute]
            model.waiting += new
            promised = {
                name: minute
                for name, minute in promised.items()
                if not any(each.place.is_ahead_of(_of(everything, name).place) for each in new)
            }
            model.make_pass()
            for first in model.queue[:1]:
                kept = model.kept[first.queued.allocation_id]
                assert kept.until is not None
                expected = int((kept.until - NOW).total_seconds() // 60)
                promised.setdefault(first.queued.allocation_id, expected)
            model.minute += 1
        late = {name: minute for name, minute in promised.items() if model.started[name] > minute}
        assert not late, f"requests started after the promised minute: {late} in {model}"


def _of(requests: list[QueuedRequest], name: AllocationId) -> QueuedRequest:
    return next(each for each in requests if each.queued.allocation_id == name)


def test_pass_over_the_queue_tries_equal_requests_once_if_they_do_not_fit_and_keeps_one_node_for_each_sku() -> (
    None
):
    queue = [
        request(number, slots=1 + number % 2, minutes=5, sku=f"s{number % 4 // 2}") for number in range(40)
    ]
    steps = one_pass(queue)
    found = [next(steps)]
    while True:
        try:
            found.append(steps.send(Outcome.NO_CAPACITY))
        except StopIteration:
            break
    assert [each.request.queued.allocation_id for each in found if isinstance(each, Try)] == [
        each.queued.allocation_id for each in queue[:4]
    ]
    assert [each.request.request.sku for each in found if isinstance(each, Keep)] == ["s0", "s1"]


def test_pass_over_the_queue_tries_a_bounded_number_of_different_requests() -> None:
    queue = [request(number, slots=1, minutes=1 + number, sku=f"s{number}") for number in range(100)]
    steps = one_pass(queue)
    found = [next(steps)]
    while True:
        try:
            found.append(steps.send(Outcome.NO_CAPACITY))
        except StopIteration:
            break
    assert sum(isinstance(each, Try) for each in found) == MOST_TRIED
    assert sum(isinstance(each, Keep) for each in found) == MOST_KEPT


def test_waiting_request_over_its_quota_gets_no_node_kept_and_the_next_equal_request_is_tried() -> None:
    queue = [request(number, slots=1, minutes=5) for number in range(2)]
    steps = one_pass(queue)
    assert next(steps) == Try(queue[0])
    assert steps.send(Outcome.NOT_ADMITTED) == Try(queue[1])


@pytest.mark.parametrize(
    ("priority", "minutes", "classes", "nodes"),
    [
        (0, 60, {"class"}, set()),
        (0, 61, {"class"}, {"n1"}),
        (0, 61, {"other"}, set()),
        (1, 61, {"class"}, set()),
    ],
)
def test_node_kept_for_a_request_is_refused_to_later_requests_that_would_use_the_kept_slots_too_long(
    priority: int, minutes: int, classes: set[str], nodes: set[str]
) -> None:
    owner = Place(0, NOW, AllocationId("alc-0"))
    kept = Kept(owner, NodeId("n1"), CLASSES, NOW + timedelta(minutes=60))
    other = Place(priority, NOW + timedelta(seconds=1), AllocationId("alc-1"))
    end = NOW + timedelta(minutes=minutes)
    assert kept_from([kept], other, classes, end) == nodes
    assert kept_from([kept], owner, classes, end) == set()
    unknown = kept._replace(until=None)
    assert kept_from([unknown], other, {"class"}, NOW) == ({"n1"} if priority == 0 else set())


def test_request_may_wait_only_if_every_reason_of_its_refusal_can_end_with_time() -> None:
    nothing = unplaced([], Demand(SkuName("a"), SMALL, (SMALL.fabric,)), 1, None)
    assert not may_wait(nothing), "no node has such slots"
    assert may_wait(Conflict(Objection("no_capacity", "full")))
    assert may_wait(Conflict(Objection("no_public_address", "none is free")))
    assert not may_wait(NotAdmitted([Objection("quota_exceeded", "too many slots")]))
    assert not may_wait(Conflict(Objection("no_capacity", "full"), Objection("price_too_high", "too dear")))


@pytest.mark.parametrize(
    "to",
    [AddressRequest(), PortRequest("tcp", 22, None), PortRequest("udp", 53, 20053)],
    ids=["address", "any", "named"],
)
def test_ingress_rule_of_a_waiting_request_is_read_back_unchanged_from_its_recorded_form(
    to: AddressRequest | PortRequest,
) -> None:
    rule = IngressRequest(1, to, (Ipv4Subnet("198.51.100.0/24"),))
    assert requested_ingress(queued_ingress(IngressId("ing-1"), rule)) == rule
