"""`interference`: time until a change made by another program is recorded, for every kind of change the lab can make.

The site, the clock and the order of steps are the same as in the benchmark `drift`. Each round injects every fault of
`node_agent.lab.fault_injection` once, with an administrator's tools, while the agent runs with its default settings.
The two main results are the slowest change for which the kernel or a daemon sends an event, and the slowest one that
only the periodic survey finds.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from bench.harness.measure import Bench, Measurement, Progress, Round, TakeRound, percentile, show
from bench.nodes.drift import DriftReader
from bench.nodes.lab_site import ActiveSlice, lab_site, slice_on_each_node
from node_agent.lab.fault_injection import INJECTED_FAULTS, OTHER_INJECTED_FAULTS, InjectedFault
from tasks.drift import CATALOGUE, DriftKind

ROUNDS: Final = 1
_FIRST_SUBNET: Final = "10.100.1."
_NEEDS_MORE: Final = ("$off", "$device", "$elsewhere", "$function", "$meter")
"""Variables in the commands of faults that this site cannot inject, because it has no stopped slice, device, pinned CPU
or rate limit.
"""


def _in_subnet_of(slice_: ActiveSlice, fault: InjectedFault) -> InjectedFault:
    """Return the injected fault with its addresses moved from the first lab node's subnet to the slice's subnet."""
    prefix, _, _ = slice_.address.rpartition(".")
    done, undone = (
        each.replace(_FIRST_SUBNET, f"{prefix}.") for each in (fault.inject_command, fault.revert_command)
    )
    return replace(fault, inject_command=done, revert_command=undone)


def _applies(kind: DriftKind, fault: InjectedFault) -> bool:
    return CATALOGUE[kind].scope != "ingress" and not any(
        name in fault.inject_command for name in _NEEDS_MORE
    )


CASES: Final[Mapping[str, tuple[DriftKind, InjectedFault]]] = MappingProxyType(
    {
        **{kind: (kind, fault) for kind, fault in INJECTED_FAULTS.items() if _applies(kind, fault)},
        **{name: case for name, case in OTHER_INJECTED_FAULTS.items() if _applies(*case)},
    }
)
"""Injected faults by name: the kind of drift that is reported, and the fault."""


def gives_event(name: str) -> bool:
    """Return whether the kernel or a daemon sends an event for the injected fault with this name.

    If not, only the periodic survey or a probe finds the fault.
    """
    kind, fault = CASES[name]
    return not fault.unreported and CATALOGUE[kind].source not in {"survey", "probe"}


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with lab_site() as site:
        slices = await slice_on_each_node(site)
        reader = DriftReader(site)

        async def take(_number: int, progress: Progress) -> Round:
            took: dict[str, list[float]] = {}
            for done, (name, (kind, fault)) in enumerate(CASES.items(), 1):
                # The nodes take turns: drift that recurs too often on one node stays open.
                slice_ = slices[done % len(slices)]
                took[name] = [await reader.time_to_record(slice_, kind, _in_subnet_of(slice_, fault))]
                show(f"\n{name}: {took[name][0]:.0f} ms ")
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
    explanation="time until a change by another program on a real node is recorded, for each kind of change",
    shape=f"interference, {', '.join(CASES)}",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
