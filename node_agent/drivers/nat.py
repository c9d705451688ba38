"""nftables through `nft -j -f -`, and connection tracking (`conntrack`).

Only tables named `sliceplane` are written, and of others no more is read than where they send packets. `nft` runs a
list of commands as one transaction of the kernel. What iptables made is in the listing with its conditions, but only
the one for people says where it sends to.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from events.values import Ipv4Address
from node_agent.drivers import conntrack
from node_agent.drivers.netlink import Refused
from node_agent.drivers.programs import Asked, ask, tell
from node_agent.looks import look, look_again, look_ahead
from node_agent.mappings import Connection
from node_agent.rivals import Diversion, Targets, diversion, targets
from node_agent.rules import TABLE, Chain, Change, Family, FoundRule, Rule, Ruleset, canonical
from node_agent.slices import HostRefused, HostUnreadable

FAMILIES: Final[tuple[Family, ...]] = ("inet", "netdev")

_OF_IPV4: Final = {"ip", "inet"}

Command = dict[str, Any]


class _Listed(NamedTuple):
    own: Ruleset
    diversions: tuple[Diversion, ...]


class Nftables:
    """`deadline` in seconds is each call's."""

    def __init__(self, deadline: float = 5.0) -> None:
        self._deadline = deadline

    def missing(self) -> tuple[str, ...]:
        return () if shutil.which("nft") else ("program nft",)

    def ruleset(self) -> Ruleset:
        return look((self, "ruleset"), lambda: self._ask_ruleset().answer()).own

    def diversions(self) -> tuple[Diversion, ...]:
        listed = look((self, "ruleset"), lambda: self._ask_ruleset().answer()).diversions
        if not any(each.is_opaque for each in listed):
            return listed
        sent = look((self, "targets"), self._targets)
        return tuple(replace(each, to=sent.get((each.table, each.handle), each.to)) for each in listed)

    def _targets(self) -> Targets:
        # What is somebody else's is told as exactly as it can be, and keeps nobody from looking at ours.
        with suppress(HostUnreadable):
            return self._ask_targets().answer()
        return {}

    def look_ahead(self) -> None:
        look_ahead((self, "ruleset"), self._ask_ruleset)

    def change(self, change: Change) -> None:
        look_again(self)
        commands = [*_afresh(change), *map(_delete, change.delete)]
        # `insert` puts at the head: the last one inserted stands first.
        commands += [{"insert": {"rule": _rule(rule)}} for rule in reversed(change.insert)]
        commands += [{"add": {"rule": _rule(rule)}} for rule in change.append]
        tell("nft", ("nft", "-j", "-f", "-"), json.dumps({"nftables": commands}), self._deadline)

    def connections(self, ip: Ipv4Address) -> tuple[Connection, ...]:
        listed = look((self, "connections"), self._tracked)
        return tuple(each.connection for each in conntrack.its(ip, listed))

    def forget(self, ip: Ipv4Address, which: Callable[[Connection], bool]) -> None:
        look_again(self)
        its = conntrack.its(ip, self._tracked())
        doomed = [each.original for each in its if which(each.connection)]
        try:
            conntrack.forget(doomed, self._deadline)
        except Refused as error:
            raise HostRefused(f"flush connections of {ip}: {error}") from error
        except OSError as error:
            raise HostUnreadable(f"flush connections of {ip}: {error}") from error

    def _tracked(self) -> tuple[bytes, ...]:
        try:
            return conntrack.tracked(self._deadline)
        except (Refused, OSError) as error:
            raise HostUnreadable(f"connection tracking: {error}") from error

    def _ask_ruleset(self) -> Asked[_Listed]:
        return ask("nft list ruleset", [("nft", "-j", "list", "ruleset")], _listed, self._deadline)

    def _ask_targets(self) -> Asked[Targets]:
        return ask("nft list ruleset", [("nft", "-na", "list", "ruleset")], targets, self._deadline)


# A survey sees the same rules again and again.
@lru_cache(maxsize=2)
def _listed(text: str) -> _Listed:
    listed = json.loads(text)["nftables"]
    chains = (each["chain"] for each in listed if "chain" in each)
    rules = [each["rule"] for each in listed if "rule" in each]
    own = Ruleset(
        frozenset(_found_chain(chain) for chain in chains if _ours(chain)),
        tuple(_found_rule(rule) for rule in rules if _ours(rule)),
    )
    others = (_found_diversion(rule) for rule in rules if not _ours(rule) and rule["family"] in _OF_IPV4)
    return _Listed(own, tuple(each for each in others if each is not None))


def _found_diversion(listed: Command) -> Diversion | None:
    table = f"{listed['family']} {listed['table']}"
    return diversion(table, listed["chain"], listed["handle"], listed["expr"])


def _ours(listed: Command) -> bool:
    return bool(listed["table"] == TABLE and listed["family"] in FAMILIES)


def _found_chain(listed: Command) -> Chain:
    kind, hook, priority = (listed.get(key) for key in ("type", "hook", "prio"))
    return Chain(listed["family"], listed["name"], kind, hook, priority)


def _found_rule(listed: Command) -> FoundRule:
    rule = Rule(listed["family"], listed["chain"], listed.get("comment", ""), canonical(listed["expr"]))
    return FoundRule(rule, listed["handle"])


def _rule(rule: Rule) -> Command:
    return {
        "family": rule.family,
        "table": TABLE,
        "chain": rule.chain,
        "comment": rule.owner,
        "expr": json.loads(rule.body),
    }


def _delete(found: FoundRule) -> Command:
    place = {"family": found.rule.family, "table": TABLE, "chain": found.rule.chain}
    return {"delete": {"rule": {**place, "handle": found.handle}}}


def _afresh(change: Change) -> Iterator[Command]:
    tables = [{"table": {"family": family, "name": TABLE}} for family in FAMILIES if change.afresh]
    # Added before it is deleted: deleting a table that is not there would be refused.
    yield from ({"add": table} for table in tables)
    yield from ({"delete": table} for table in tables)
    yield from ({"add": table} for table in tables)
    yield from ({"add": {"chain": _chain(chain, change.device)}} for chain in change.chains)


def _chain(chain: Chain, device: str) -> Command:
    words: Command = {"family": chain.family, "table": TABLE, "name": chain.name}
    if chain.hook is not None:
        words |= {"type": chain.kind, "hook": chain.hook, "prio": chain.priority, "policy": "accept"}
    if chain.family == "netdev":
        words["dev"] = device
    return words
