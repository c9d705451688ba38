"""Reachability of slices of the simulated host, computed from its state on request instead of by probes.

A slice is reachable if its machine runs and is not frozen, and if its link, its port, its rules and the gateway's
address are present. A foreign table that translates the traffic of an ingress makes that ingress unreachable.
"""

import json
from dataclasses import dataclass, field

from events.values import SlotIndex
from node_agent.host.reachability import Findings, Path, paths_of, unreachable
from node_agent.host.slices import Difference, Slice, SliceNetwork
from node_agent.host.snapshots import look
from node_agent.lab.simulated.host import SimulatedHost, State, links_of
from node_agent.packets.foreign_rules import ForeignRule
from node_agent.packets.traffic import port_ranges


@dataclass(frozen=True, slots=True)
class _Carried:
    """State of a simulated host that determines which slices are reachable.

    `running` are the names of machines that run and are not frozen; `links` the names of links that are up; `ports` the
    names of the switch's ports; `rules` the taps of slots with packet filter rules; `addressed` the names of gateway
    links that are up and have an address; and `taken` the ranges of ports that foreign rules translate.
    """

    running: frozenset[str]
    links: frozenset[str]
    ports: frozenset[str]
    rules: frozenset[str]
    addressed: frozenset[str]
    taken: tuple[tuple[int, int], ...]


@dataclass(eq=False)
class SimulatedReachability:
    """Simulated implementation of `node_agent.host.host.Reachability`."""

    host: SimulatedHost
    _watched: set[SlotIndex] = field(default_factory=set)

    def watch(self, wanted: Slice, port: int) -> None:
        self._watched.add(wanted.network.index)

    def leave(self, slot: SlotIndex) -> None:
        self._watched.discard(slot)

    def findings(self, wanted: Slice, port: int) -> Findings:
        if wanted.network.index not in self._watched:
            return {}
        carried = look((self, "carried"), self._carried)
        own, *ingresses = paths_of(wanted, port)
        if (failed := _at_gateway(own, carried)) is not None:
            return {None: failed}
        return {None: None} | {path.ingress_id: _at_ingress(path, carried) for path in ingresses}

    def _carried(self) -> _Carried:
        with self.host.look() as state:
            return _carried(state)


def _carried(state: State) -> _Carried:
    running = (each.name for each in state.domains if each.state == "running")
    return _Carried(
        running=frozenset(running) - frozenset(state.frozen),
        links=frozenset(each.name for each in links_of(state) if getattr(each, "up", True)),
        ports=frozenset(each.name for each in state.ports),
        rules=frozenset(each.rule.place for each in state.nat),
        addressed=frozenset(name for name, link in state.links.items() if link.up and link.addresses),
        taken=tuple(
            ports for table in state.foreign_tables for rule in table.rules for ports in _taken(rule)
        ),
    )


def _taken(rule: ForeignRule) -> list[tuple[int, int]]:
    """Return the ranges of destination ports that a foreign rule translates; empty if the rule translates none."""
    body = json.loads(rule.body)
    if not any("dnat" in statement for statement in body):
        return []
    matches = [each["match"] for each in body if "match" in each]
    ports = [each["right"] for each in matches if each["left"].get("payload", {}).get("field") == "dport"]
    return [ranges for each in ports for ranges in port_ranges(each)] or [(1, 65535)]


def _at_gateway(path: Path, carried: _Carried) -> Difference | None:
    network = path.network
    if network.bridge not in carried.addressed:
        wanted = f"a route to {network.ip} over {network.bridge}"
        return unreachable(wanted, "gateway", "the host cannot send probes: Network is unreachable")
    if _is_connected(network, carried):
        return None
    wanted = f"an answer of {network.ip} to ARP requests on {network.bridge}"
    return unreachable(wanted, "address", "no answer to ARP")


def _is_connected(network: SliceNetwork, carried: _Carried) -> bool:
    tap = network.tap
    return all(tap in names for names in (carried.running, carried.links, carried.ports, carried.rules))


def _at_ingress(path: Path, carried: _Carried) -> Difference | None:
    address, port = path.destination
    if not any(first <= port <= last for first, last in carried.taken):
        return None
    wanted = f"an answer of {path.network.ip} port {path.port} to probes of {address} port {port}"
    return unreachable(wanted, "ingress", "another nftables table sends the probe elsewhere", path.ingress_id)
