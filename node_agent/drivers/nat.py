"""nftables through `nft -j -f -`, and connection tracking over netlink.

Only tables named `sliceplane` are read and written. `nft` runs a list of commands as one transaction of the kernel.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from errno import ENOENT
from functools import lru_cache
from socket import AF_INET
from typing import Any, Final, TypeVar

from pyroute2 import Conntrack
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple

from events.values import Ipv4Address
from node_agent.drivers.deadlines import Deadlines, Overdue
from node_agent.drivers.programs import Asked, ask, tell
from node_agent.looks import look, look_again, look_ahead
from node_agent.mappings import Connection
from node_agent.rules import TABLE, Chain, Change, Family, FoundRule, Rule, Ruleset, canonical
from node_agent.slices import HostRefused, HostUnreadable

FAMILIES: Final[tuple[Family, ...]] = ("inet", "netdev")

Command = dict[str, Any]
Tracked = tuple[Any, Connection]
"""A connection, after the tuple that the kernel knows it by."""

T = TypeVar("T")


class Nftables:
    """`deadline` in seconds is each call's."""

    def __init__(self, deadline: float = 5.0) -> None:
        self._deadline = deadline
        self._deadlines = Deadlines()

    def missing(self) -> tuple[str, ...]:
        return () if shutil.which("nft") else ("program nft",)

    def ruleset(self) -> Ruleset:
        return look((self, "ruleset"), lambda: self._ask_ruleset().answer())

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
        tracked = look((self, "connections"), self._tracked)
        return tuple(connection for _, connection in tracked if connection.has(ip))

    def forget(self, ip: Ipv4Address, which: Callable[[Connection], bool]) -> None:
        look_again(self)
        tracked = self._tracked()
        doomed = [each for each, connection in tracked if connection.has(ip) and which(connection)]
        try:
            self._within(lambda: _forget(doomed))
        except NetlinkError as error:
            raise HostRefused(f"flush connections of {ip}: {error}") from error
        except (Overdue, OSError) as error:
            raise HostUnreadable(f"flush connections of {ip}: {error}") from error

    def _tracked(self) -> tuple[Tracked, ...]:
        try:
            return self._within(_listed)
        except (Overdue, NetlinkError, OSError) as error:
            raise HostUnreadable(f"connection tracking: {error}") from error

    def _within(self, call: Callable[[], T]) -> T:
        return self._deadlines.within(self._deadline, call)

    def _ask_ruleset(self) -> Asked[Ruleset]:
        return ask("nft list ruleset", [("nft", "-j", "list", "ruleset")], _found_ruleset, self._deadline)


# A survey sees the same rules again and again.
@lru_cache(maxsize=2)
def _found_ruleset(text: str) -> Ruleset:
    listed = json.loads(text)["nftables"]
    chains = (each["chain"] for each in listed if "chain" in each)
    rules = (each["rule"] for each in listed if "rule" in each)
    return Ruleset(
        frozenset(_found_chain(chain) for chain in chains if _ours(chain)),
        tuple(_found_rule(rule) for rule in rules if _ours(rule)),
    )


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


def _listed() -> tuple[Tracked, ...]:
    with Conntrack() as conntrack:
        return tuple(tracked_in(conntrack.dump()))


def tracked_in(messages: Iterable[Any]) -> Iterator[Tracked]:
    """The IPv4 connections in the kernel's messages.

    pyroute2's own `ConntrackEntry` is no help: it wants the state of each TCP connection, which the kernel leaves out
    where it handed one over to a flow table or a card.
    """
    for message in messages:
        if message["nfgen_family"] == AF_INET:
            asked, answered = (
                NFCTAttrTuple.from_netlink(AF_INET, message.get_attr(side))
                for side in ("CTA_TUPLE_ORIG", "CTA_TUPLE_REPLY")
            )
            yield asked, _connection(asked, answered)


def _connection(asked: Any, answered: Any) -> Connection:
    """The answers' side is what translation made of the questions'."""
    return Connection(
        protocol=asked.proto,
        source=asked.saddr,
        destination=asked.daddr,
        destination_port=asked.dport,
        target=answered.saddr,
        target_port=answered.sport,
        answered_to=answered.daddr,
    )


def _forget(doomed: Iterable[Any]) -> None:
    with Conntrack() as conntrack:
        for each in doomed:
            try:
                conntrack.delete(each)
            except NetlinkError as error:
                # It ended by itself since the listing.
                if error.code != ENOENT:
                    raise
