"""Tests of the decision when a path to a slice counts as failed, from the probes that were sent and their answers."""

import re
from collections.abc import Callable
from typing import Final

import pytest

from events.values import IngressId, Ipv4Address, MacAddress
from node_agent.host.reachability import (
    PERIOD,
    REFUSED,
    SILENCE,
    Findings,
    HostView,
    Neighbour,
    Path,
    PathProbes,
    SliceProbes,
    paths_of,
    unreached,
)
from node_agent.host.slices import Difference
from tests.contract.network.slices import NETWORK, address_mapping, network, port_mapping, slice_on

SLOT: Final = network(0)
WEB: Final = port_mapping(1, "203.0.113.7", 8080, 80)
WANTED: Final = slice_on(SLOT, WEB)
FINE: Final = HostView(NETWORK.bridge, neighbour=Neighbour(SLOT.mac))
Answers = Callable[[PathProbes, float], bool | None]
"""Function that returns the guest's answer to a probe: True if the port refuses it, False if it accepts it, None
without an answer.
"""


class SimulatedClock:
    """Simulated clock that sends the due probes of a slice every 0.05 seconds. If the guest answers a probe, the answer
    arrives `late` seconds after the probe was sent.
    """

    def __init__(self, answers: Answers, late: float = 0.0) -> None:
        self.now, self.answers, self.late = 1000.0, answers, late
        self.coming: list[tuple[float, PathProbes, bool]] = []
        self.courses = SliceProbes(paths_of(WANTED, 22), self.now)
        self.sent: list[tuple[float, Path]] = []

    def run(self, seconds: float, view: HostView = FINE) -> Findings:
        ends = self.now + seconds
        while self.now < ends:
            self.courses.compare_hops(self.now)
            for course in self.courses.all:
                if course.due <= self.now:
                    course.send(self.now, 7)
                    self.sent.append((self.now, course.path))
                    if (refused := self.answers(course, self.now)) is not None:
                        self.coming.append((self.now + self.late, course, refused))
            self._deliver()
            self.courses.findings = self.courses.judged(self.now, lambda: view)
            self.now += 0.05
        return self.courses.findings

    def _deliver(self) -> None:
        here = [each for each in self.coming if each[0] <= self.now]
        self.coming = [each for each in self.coming if each not in here]
        for _, course, refused in here:
            if course.requested_at is not None:
                self.courses.answer(course, self.now, refused=refused)


def open_(_course: PathProbes, _now: float) -> bool | None:
    return False


def silent(_course: PathProbes, _now: float) -> bool | None:
    return None


def closed(_course: PathProbes, _now: float) -> bool | None:
    return True


def only_gateway(course: PathProbes, _now: float) -> bool | None:
    return False if course.path.public is None else None


def found_in(findings: Findings, key: IngressId | None = None) -> str:
    found = findings[key]
    assert found is not None
    return re.sub(r"for \d+ s", "for so long", found.observed)


def test_network_path_with_answered_probes_is_probed_once_per_period() -> None:
    clock = SimulatedClock(open_)
    assert clock.run(3 * PERIOD - 1) == {None: None, WEB.ingress_id: None}
    assert len(clock.sent) == 2 * 3


def test_guest_that_answers_no_probe_for_less_than_the_limit_is_not_reported() -> None:
    clock = SimulatedClock(open_)
    clock.run(PERIOD)
    begins = clock.now
    clock.answers = lambda _, now: None if now < begins + SILENCE - 0.6 else False
    assert clock.run(SILENCE + PERIOD) == {None: None, WEB.ingress_id: None}


def test_guest_that_answers_no_probe_is_reported_within_ten_seconds_and_its_ingress_rules_are_not_judged() -> (
    None
):
    clock = SimulatedClock(open_)
    clock.run(1)
    clock.answers = silent
    findings = clock.run(PERIOD + SILENCE)
    assert (
        found_in(findings) == "no answer to probes for so long, while ARP requests are answered (hop: port)"
    )
    assert findings.keys() == {None}


def test_stall_of_the_agent_is_not_reported_as_an_unreachable_guest() -> None:
    clock = SimulatedClock(silent)
    clock.run(1)
    clock.now += 60
    assert clock.run(0.1) == {}


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (HostView("lo"), "a route over lo (hop: gateway)"),
        (HostView(None, "Invalid argument"), "the route lookup failed: Invalid argument (hop: gateway)"),
        (
            HostView(NETWORK.bridge, neighbour=Neighbour(None)),
            "no answer to ARP requests for so long (hop: address)",
        ),
        (
            HostView(NETWORK.bridge, neighbour=Neighbour(MacAddress("52:54:00:99:99:99"))),
            "the host sends packets to the MAC 52:54:00:99:99:99 instead of 52:54:00:01:00:00 (hop: address)",
        ),
        (FINE, "no answer to probes for so long, while ARP requests are answered (hop: port)"),
    ],
)
def test_finding_about_an_unanswered_network_path_names_the_first_hop_that_fails(
    view: HostView, found: str
) -> None:
    assert found_in(SimulatedClock(silent).run(SILENCE + 1, view)) == found


def test_finding_about_a_probe_that_the_host_refuses_to_send_names_the_gateway_as_the_failed_hop() -> None:
    clock = SimulatedClock(silent)
    clock.courses.gateway.unsent = "Operation not permitted"
    found = found_in(clock.run(SILENCE + 1))
    assert found == "the host cannot send probes: Operation not permitted (hop: gateway)"


def test_closed_port_of_a_probed_guest_is_reported_only_after_half_a_minute() -> None:
    clock = SimulatedClock(closed)
    assert clock.run(REFUSED - 1)[None] is None
    assert found_in(clock.run(PERIOD + 2)) == "connection refused for so long (hop: port)"
    clock.answers = open_
    assert clock.run(PERIOD + 1)[None] is None


def test_ingress_rule_is_reported_alone_if_its_probe_fails_and_the_gateways_probe_is_answered() -> None:
    clock = SimulatedClock(open_)
    clock.run(1)
    clock.answers = only_gateway
    findings = clock.run(PERIOD + SILENCE + 1)
    assert findings[None] is None
    assert found_in(findings, WEB.ingress_id).startswith(
        "no answer for so long, while probes from the gateway are answered"
    )
    [of_web] = unreached(findings, WANTED, ())
    assert of_web.ingress_id == WEB.ingress_id


@pytest.mark.parametrize("apart", [0.0, 0.45, 0.6, 2.5, 4.8])
@pytest.mark.parametrize("lasts", [4.0, 4.8, 5.05, 5.5, 30.0])
def test_outage_of_a_slice_is_not_reported_as_an_outage_of_its_ingress_rules(
    lasts: float, apart: float
) -> None:
    for phase in (0.0, 0.3, 0.5, 2.5, 4.9):
        clock = SimulatedClock(open_, late=0.2)
        for course in clock.courses.ingresses.values():
            course.due += apart
        clock.run(phase)
        begins = clock.now
        clock.answers = lambda _, now: None if now < begins + lasts else False  # noqa: B023 within the loop
        while clock.now < begins + lasts + 1.5:
            assert clock.run(0.05).get(WEB.ingress_id) is None
        assert clock.run(PERIOD) == {None: None, WEB.ingress_id: None}


def test_change_hint_makes_the_agent_probe_every_path_immediately_but_at_most_twice_a_second() -> None:
    clock = SimulatedClock(open_)
    clock.run(1)
    before = len(clock.sent)
    for _ in range(20):
        clock.courses.hurry(clock.now)
        clock.run(0.05)
    assert 2 * 2 <= len(clock.sent) - before <= 2 * 3


def test_udp_ingress_rule_has_no_probe_and_whole_address_rule_is_probed_at_the_readiness_port() -> None:
    udp = WEB.model_copy(update={"protocol": "udp"})
    whole = address_mapping(2, "203.0.113.9")
    own, of_whole = paths_of(slice_on(SLOT, udp, whole), 2222)
    assert own.destination == (SLOT.ip, 2222)
    assert (of_whole.ingress_id, of_whole.destination) == (
        whole.ingress_id,
        (Ipv4Address("203.0.113.9"), 2222),
    )


def test_remaining_probe_paths_of_a_slice_keep_their_findings_when_an_ingress_rule_is_removed() -> None:
    clock = SimulatedClock(open_)
    clock.run(1)
    gateway = clock.courses.gateway
    clock.courses.update(paths_of(slice_on(SLOT), 22), clock.now)
    assert clock.courses.findings == {None: None}
    assert clock.courses.all == (gateway,)


def test_unreachable_drift_of_a_probe_path_stays_open_until_the_path_is_judged_again() -> None:
    of_slice = Difference("slice.unreachable", "an answer", "none")
    of_web = Difference("slice.unreachable", "an answer", "none", WEB.ingress_id)
    assert unreached({}, WANTED, (of_slice, of_web)) == (of_slice, of_web)
    assert unreached({None: None}, WANTED, (of_slice, of_web)) == (of_web,)
    assert unreached({None: None}, slice_on(SLOT), (of_web,)) == ()
