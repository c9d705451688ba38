"""Tests of reachability reports on every kind of host: whether a slice can be reached from the gateway, and by each of
its ingress rules.
"""

from typing import Final

from node_agent.host.reachability import Key
from tests.agent.eventually import eventually
from tests.contract.network.hosts import Host, aspects_of
from tests.contract.network.slices import address_mapping, network, port_mapping, run, slice_on

SLOT: Final = network(0)
WEB: Final = port_mapping(1, "203.0.113.7", 8080, 80)
PRIVATE: Final = port_mapping(2, "203.0.113.7", 8081, 81, "198.51.100.0/24")
WHOLE: Final = address_mapping(3, "203.0.113.9")
WANTED: Final = slice_on(SLOT, WEB, PRIVATE, WHOLE)
PORT: Final = 22
ALL: Final[dict[Key, str | None]] = dict.fromkeys(
    (None, WEB.ingress_id, PRIVATE.ingress_id, WHOLE.ingress_id)
)
TIMEOUT: Final = 15.0


def apply_and_watch(host: Host) -> None:
    for aspect in aspects_of(host):
        run(aspect.to_apply(WANTED))
    host.reachability.watch(WANTED, PORT)


def findings(host: Host) -> dict[Key, str | None]:
    found = host.reachability.findings(WANTED, PORT)
    return {key: each.observed if each is not None else None for key, each in found.items()}


def await_all(host: Host) -> None:
    eventually(lambda: findings(host) == ALL, TIMEOUT, lambda: str(findings(host)))


def test_slice_that_answers_probes_is_reported_reachable_by_every_path(host: Host) -> None:
    apply_and_watch(host)
    with host.answering(SLOT):
        await_all(host)


def test_slice_that_does_not_answer_probes_is_reported_unreachable_until_it_answers(host: Host) -> None:
    apply_and_watch(host)
    eventually(lambda: findings(host).get(None), TIMEOUT)
    assert str(findings(host)[None]).endswith("(hop: address)")
    assert findings(host).keys() == {None}
    with host.answering(SLOT):
        await_all(host)


def test_ingress_rule_that_a_foreign_nftables_table_redirects_is_the_only_path_reported_unreachable(
    host: Host,
) -> None:
    apply_and_watch(host)
    with host.answering(SLOT):
        await_all(host)
        host.plant_diversion(SLOT.gateway, WEB.public_port)
        try:
            eventually(lambda: findings(host).get(WEB.ingress_id), TIMEOUT)
            assert str(findings(host)[WEB.ingress_id]).endswith("(hop: ingress)")
            assert findings(host) == ALL | {WEB.ingress_id: findings(host)[WEB.ingress_id]}
        finally:
            host.remove_diversion()
        await_all(host)


def test_reachability_probes_leave_the_slice_in_its_desired_state_and_leave_no_tracked_connection(
    host: Host,
) -> None:
    apply_and_watch(host)
    with host.answering(SLOT):
        await_all(host)
        steps = [step.name for aspect in aspects_of(host) for step in aspect.to_apply(WANTED)]
        assert steps == []
        assert host.filter.connections(SLOT.ip) == ()


def test_slice_without_reachability_probes_has_no_findings_and_no_new_tracked_connections(host: Host) -> None:
    apply_and_watch(host)
    eventually(lambda: findings(host).get(None), TIMEOUT)
    host.reachability.leave(SLOT.index)
    host.filter.forget(SLOT.ip, lambda _: True)
    assert findings(host) == {}
    assert host.filter.connections(SLOT.ip) == ()
