"""The packet filter of the simulated host.

It applies all changes of a transaction or, if it refuses one of them, none. It never reuses a rule's handle.
"""

from collections.abc import Callable, Iterable, Mapping

from events.values import Ipv4Address
from node_agent.aspects.ingress_rules import Connection
from node_agent.host.slices import HostRefused
from node_agent.lab.simulated.host import SimulatedHost, State
from node_agent.packets.foreign_rules import ForeignTables
from node_agent.packets.rules import AddressTranslation, Change, FoundRule, Rule, Ruleset
from node_agent.packets.xfrm import XfrmPolicy


class SimulatedFilter:
    """Packet filter and connection tracking of the simulated host."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host

    def missing(self) -> tuple[str, ...]:
        return ()

    def unsupported(self) -> Mapping[AddressTranslation, str]:
        with self._host.look() as state:
            return dict(state.refused_translations)

    def ruleset(self) -> Ruleset:
        with self._host.look() as state:
            return Ruleset(frozenset(state.chains), tuple(state.nat), frozenset(state.nat_others))

    def foreign(self) -> ForeignTables:
        with self._host.look() as state:
            return ForeignTables(tuple(state.foreign_tables))

    def policies(self) -> tuple[XfrmPolicy, ...]:
        with self._host.look() as state:
            return tuple(state.policies)

    def change(self, change: Change) -> None:
        with self._host.change("translation.change") as state:
            _check(state, change)
            last = max((each.handle for each in state.nat), default=0)
            if change.afresh:
                state.chains, state.nat, state.nat_others = [], [], []
            state.chains = list(dict.fromkeys((*state.chains, *change.chains)))
            kept = [each for each in state.nat if each not in change.delete]
            inserted = _handled(change.insert, last)
            appended = _handled(change.append, last + len(inserted))
            state.nat = [*inserted, *kept, *appended]

    def connections(self, ip: Ipv4Address) -> tuple[Connection, ...]:
        with self._host.look() as state:
            return tuple(each for each in state.connections if each.has(ip))

    def forget(self, ip: Ipv4Address, which: Callable[[Connection], bool]) -> None:
        with self._host.change("translation.flush", ip) as state:
            state.connections = [each for each in state.connections if not (each.has(ip) and which(each))]


def _handled(rules: Iterable[Rule], last: int) -> list[FoundRule]:
    return [FoundRule(rule, last + number) for number, rule in enumerate(rules, start=1)]


def _check(state: State, change: Change) -> None:
    for deleted in change.delete:
        if deleted.handle not in [each.handle for each in state.nat]:
            raise HostRefused(
                f"cannot change nftables rules: rule with handle {deleted.handle} does not exist"
            )
    for chain in change.chains:
        if chain.device is not None and chain.device not in state.links:
            raise HostRefused(f"cannot change nftables rules: device {chain.device} does not exist")
    existing = () if change.afresh else state.chains
    names = {(chain.family, chain.name) for chain in (*existing, *change.chains)}
    for rule in (*change.insert, *change.append):
        if (rule.family, rule.chain) not in names:
            raise HostRefused(
                f"cannot change nftables rules: chain {rule.chain} does not exist in family {rule.family}"
            )
        for translation, reason in state.refused_translations.items():
            if f'"{translation}":' in rule.body:
                raise HostRefused(f"cannot change nftables rules: {reason}")
