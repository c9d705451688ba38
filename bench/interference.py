"""`interference`: other programs change a node that carries a slice, in every way that the lab knows; how long until
the change is on record.

The site, the clock and the order are those of the bench `drift`. Here every harm of `node_agent.lab.harms` is done once
a round, by the tools of an administrator, while the agent runs with its default settings. Two figures come of them: the
slowest change of which the kernel or a daemon gives an event, and the slowest that the periodic survey has to find.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from bench.drift import Carrying
from bench.lab_site import Slice, lab_site, one_on_each_node
from bench.measure import Bench, Measurement, Progress, Round, TakeRound, percentile, say
from node_agent.lab.harms import HARMS, OTHER_HARMS, Harm
from tasks.drift import CATALOGUE, DriftKind

ROUNDS: Final = 1
_FIRST_SUBNET: Final = "10.100.1."
_NEEDS_MORE: Final = ("$off", "$device", "$elsewhere", "$function", "$meter")
"""Names of what a site of this bench does not have: a slice that is off, a device, a pinned CPU, a rate."""


def _on_network_of(slice_: Slice, harm: Harm) -> Harm:
    """The harm with the subnet of the slice's node: the lab's harms name that of its first node."""
    prefix, _, _ = slice_.address.rpartition(".")
    done, undone = (each.replace(_FIRST_SUBNET, f"{prefix}.") for each in (harm.done, harm.undone))
    return replace(harm, done=done, undone=undone)


def _of_this_site(kind: DriftKind, harm: Harm) -> bool:
    return CATALOGUE[kind].scope != "exposure" and not any(name in harm.done for name in _NEEDS_MORE)


CASES: Final[Mapping[str, tuple[DriftKind, Harm]]] = MappingProxyType(
    {
        **{kind: (kind, harm) for kind, harm in HARMS.items() if _of_this_site(kind, harm)},
        **{name: case for name, case in OTHER_HARMS.items() if _of_this_site(*case)},
    }
)
"""By name: the kind of drift that is reported, and how it is made."""


def gives_event(name: str) -> bool:
    """Whether the kernel or a daemon gives an event of this change; else the survey or a probe finds it."""
    kind, harm = CASES[name]
    return not harm.silent and CATALOGUE[kind].source not in {"survey", "probe"}


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with lab_site() as site:
        slices = await one_on_each_node(site)
        carrying = Carrying(site)

        async def take(_number: int, progress: Progress) -> Round:
            took: dict[str, list[float]] = {}
            for done, (name, (kind, harm)) in enumerate(CASES.items(), 1):
                # The nodes take turns: what comes up too often on one node stays open there.
                slice_ = slices[done % len(slices)]
                took[name] = [await carrying.notice(slice_, kind, _on_network_of(slice_, harm))]
                say(f"\n{name}: {took[name][0]:.0f} ms ")
                progress(done / len(CASES))
            return took

        yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    series = [{name: [each[name][0]] for name in CASES} for each in rounds]
    groups = {
        "with_event": [name for name in CASES if gives_event(name)],
        "by_survey": [name for name in CASES if not gives_event(name)],
    }
    slowest = [
        {group: [max(each[name][0] for name in of)] for group, of in groups.items()} for each in series
    ]
    return (
        *(percentile(f"interference.{group}.slowest_ms", slowest, group, "ms", 100) for group in groups),
        *(percentile(f"interference.{name}.notice_ms", series, name, "ms", 100) for name in CASES),
    )


BENCH: Final = Bench(
    name="interference",
    explanation="a real node is changed in every known way; how long until each change is on record",
    shape=f"interference, {', '.join(CASES)}",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
