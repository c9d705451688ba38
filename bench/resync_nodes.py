"""Simulated nodes that go through restarts of their agents, in a process of their own (`bench.hosted`).

Each node has a disk and a host that outlive its agent: a restart is a new agent over what the old one left, with its
session to renew, its fences to read, and its whole host to look at. Between two agents the bench may damage slots of
a host by hand. The host counts every effect that an agent has on it, so that one too many is found.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from bench.hosted import Admitted, BrokenThreads, HostedNode, Hosting, serve, start_all
from events.values import SlotIndex
from node_agent.flows import cookie_of
from node_agent.slices import tap_of
from tasks.timetable import Timetable

_AT_ONCE: Final = 16
"""Agents that start at a time: more would wait for the same interpreter, and the control plane for none of them."""


class Admit(msgspec.Struct, frozen=True, tag=True):
    """Have these enrol and come up."""

    nodes: list[Admitted]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End all agents. From here on effects are counted."""


class Damage(msgspec.Struct, frozen=True, tag=True):
    """Take the switch ports of these slots away, as (node, index), their agents stopped."""

    slots: list[tuple[str, int]]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start all agents; answered when each takes orders."""


class Look(msgspec.Struct, frozen=True, tag=True):
    """Say what the agents did since they were stopped."""


Word = Admit | Stop | Damage | Start | Look


class Done(msgspec.Struct, frozen=True):
    """`effects` on all hosts of the process, by kind; `faults` are in words."""

    effects: dict[str, int]
    faults: list[str]


class _Nodes:
    """All nodes of the process."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting, self._timetable, self._broken = hosting, Timetable(), BrokenThreads()
        self._nodes: dict[str, HostedNode] = {}

    def obey(self, word: Word) -> Done:
        match word:
            case Admit(nodes):
                fresh = {each.name: HostedNode(self._hosting, each, self._timetable) for each in nodes}
                self._nodes.update(fresh)
                return self._done(start_all([*fresh.values()], _AT_ONCE))
            case Stop():
                with ThreadPoolExecutor(_AT_ONCE) as at_once:
                    list(at_once.map(_stop, self._nodes.values()))
                _put_aside()
                return self._done()
            case Damage(slots):
                for name, index in slots:
                    _damage(self._nodes[name], SlotIndex(index))
                return self._done()
            case Start():
                return self._done(start_all([*self._nodes.values()], _AT_ONCE))
            case Look():
                return self._done()

    def _done(self, faults: Sequence[str] = ()) -> Done:
        effects: Counter[str] = Counter()
        for node in self._nodes.values():
            for effect, count in node.effects.items():
                effects[effect.partition(" ")[0]] += count
        return Done(dict(effects), [*faults, *self._broken.found])


def _stop(node: HostedNode) -> None:
    node.stop()
    node.effects.clear()


def _put_aside() -> None:
    """Nothing that is there now is looked through for garbage while agents start.

    A lone agent's process has none of it, and here it would be a sixth of their time.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _damage(node: HostedNode, slot: SlotIndex) -> None:
    tap, cookie = tap_of(slot), cookie_of(slot)
    with node.host.change() as state:
        state.ports = [port for port in state.ports if port.name != tap]
        state.flows = [flow for flow in state.flows if flow.cookie != cookie]


def _answers(hosting: Hosting, lines: Iterator[str]) -> Iterator[Done]:
    nodes = _Nodes(hosting)
    yield nodes.obey(Look())
    for line in lines:
        yield nodes.obey(msgspec.json.decode(line, type=Word))


if __name__ == "__main__":
    serve(_answers)
