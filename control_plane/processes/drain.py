"""Derive the due command of a running drain from the facts of its node.

What a drain waits for are facts of slots, which are not in the stream of the node. So a running drain always has a
command due, which looks at the slots; the dispatcher repeats it until the drain has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from events.envelope import Recorded
from events.facts import Fact
from events.nodes import NodeDrainEnded, NodeDrainStarted, NodeFact, NodeRemoved
from events.orders import OrderFact


@dataclass(frozen=True, slots=True)
class AdvanceDrain:
    """Due command to take the next step of a running drain. `source` is the recorded fact of the drain's start."""

    source: Recorded[NodeFact | OrderFact]
    drain: NodeDrainStarted


def due(history: Sequence[Recorded[NodeFact | OrderFact]]) -> tuple[AdvanceDrain, ...]:
    """Return the command of the drain of a node; none if no drain runs."""
    for each in reversed(history):
        match each.fact:
            case NodeDrainStarted() as drain:
                return (AdvanceDrain(each, drain),)
            case NodeDrainEnded() | NodeRemoved():
                return ()
            case _:
                continue
    return ()


def concerns_drain(fact: Fact) -> bool:
    """Return whether a fact of a node begins its drain or changes its release time."""
    return isinstance(fact, NodeDrainStarted)
