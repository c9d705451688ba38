"""Simulated nodes with agents that are restarted, in a separate process (`bench.fleet.hosted`).

Each node has a disk and a host that outlive its agent. A restart creates a new agent on them, which renews its session,
reads the orders on its disk and surveys its host. Between two agents the benchmark may damage slots of a host. The host
counts every effect of an agent, so that an unnecessary effect is found.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from bench.fleet.hosted import Admitted, FailedThreads, HostedNode, HostingSettings, serve, start_all
from events.values import SlotIndex
from node_agent.aspects.flows import cookie_of
from node_agent.host.slices import tap_of
from node_agent.runtime.timetable import Timetable

_AT_ONCE: Final = 16
"""Agents that start at the same time: more would only compete for the interpreter, without new load for the servers."""


class Admit(msgspec.Struct, frozen=True, tag=True):
    """Instruction to enrol and start these nodes."""

    nodes: list[Admitted]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Instruction to stop all agents and reset the counters of their effects on hosts."""


class Damage(msgspec.Struct, frozen=True, tag=True):
    """Instruction to remove the switch ports of these slots, given as (node, index), while their agents are stopped."""

    slots: list[tuple[str, int]]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Instruction to start all agents. The process answers when each agent accepts orders."""


class CountEffects(msgspec.Struct, frozen=True, tag=True):
    """Instruction to return the effects on hosts since the agents were stopped."""


Instruction = Admit | Stop | Damage | Start | CountEffects


class Done(msgspec.Struct, frozen=True):
    """Answer to an instruction: number of effects on all hosts of the process, by kind; `faults` are error messages."""

    effects: dict[str, int]
    faults: list[str]


class _Nodes:
    """All simulated nodes of this process, by name."""

    def __init__(self, hosting: HostingSettings) -> None:
        self._hosting, self._timetable, self._broken = hosting, Timetable(), FailedThreads()
        self._nodes: dict[str, HostedNode] = {}

    def execute(self, instruction: Instruction) -> Done:
        match instruction:
            case Admit(nodes):
                fresh = {each.name: HostedNode(self._hosting, each, self._timetable) for each in nodes}
                self._nodes.update(fresh)
                return self._done(start_all([*fresh.values()], _AT_ONCE))
            case Stop():
                with ThreadPoolExecutor(_AT_ONCE) as at_once:
                    list(at_once.map(_stop, self._nodes.values()))
                _freeze_objects()
                return self._done()
            case Damage(slots):
                for name, index in slots:
                    _damage(self._nodes[name], SlotIndex(index))
                return self._done()
            case Start():
                return self._done(start_all([*self._nodes.values()], _AT_ONCE))
            case CountEffects():
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


def _freeze_objects() -> None:
    """Exclude all existing objects from garbage collection while agents start.

    The process of a single agent has few objects, but here their collection would take a sixth of the agents' time.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _damage(node: HostedNode, slot: SlotIndex) -> None:
    tap, cookie = tap_of(slot), cookie_of(slot)
    with node.host.change() as state:
        state.ports = [port for port in state.ports if port.name != tap]
        state.flows = [flow for flow in state.flows if flow.cookie != cookie]


def _answers(hosting: HostingSettings, lines: Iterator[str]) -> Iterator[Done]:
    nodes = _Nodes(hosting)
    yield nodes.execute(CountEffects())
    for line in lines:
        yield nodes.execute(msgspec.json.decode(line, type=Instruction))


if __name__ == "__main__":
    serve(_answers)
