"""What a bench is, and what it says: numbers of rounds, and measurements made of them.

A round holds the raw numbers of everything that is compared, taken in turn within seconds of one another. A ratio
is made within its round and then the median of the rounds is taken: machines drift, and what drifts hits both sides.
"""

import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

import msgspec

Round = Mapping[str, Sequence[float]]
"""Series name -> numbers, in the units that the bench gives them."""


class Measurement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the output. `baseline` is, for a ratio, the median of what was divided by."""

    metric: str
    value: float
    unit: str
    baseline: float | None = None


class Progress(Protocol):
    """Told how much of the round is done, from 0 to 1."""

    def __call__(self, done: float) -> None: ...


TakeRound = Callable[[int, Progress], Awaitable[Round]]


@dataclass(frozen=True, slots=True)
class Bench:
    """`running` brings the servers up and yields the function that takes round number k (from 0).

    `shape` names everything that makes two rounds comparable; kept rounds of another shape are not gone on with.
    """

    name: str
    explanation: str
    shape: str
    rounds: int
    running: Callable[[], AbstractAsyncContextManager[TakeRound]]
    results: Callable[[Sequence[Round]], tuple[Measurement, ...]]


class Pair(NamedTuple):
    """Two series of rates: ours, and the one it is held against."""

    ours: str
    baseline: str


def ratio(metric: str, rounds: Sequence[Round], pair: Pair) -> Measurement:
    """The median over the rounds of ours divided by the baseline, both medians within the round."""
    baselines = [median(each[pair.baseline]) for each in rounds]
    ratios = [median(each[pair.ours]) / base for each, base in zip(rounds, baselines, strict=True)]
    return Measurement(metric, rounded(median(ratios)), "ratio", rounded(median(baselines)))


def middle(metric: str, rounds: Sequence[Round], series: str, unit: str) -> Measurement:
    """The median of every number of the series."""
    return Measurement(metric, rounded(median(pooled(rounds, series))), unit)


def percentile(metric: str, rounds: Sequence[Round], series: str, unit: str, percent: float) -> Measurement:
    """The smallest number of the series that at least `percent` of them do not exceed (nearest rank)."""
    ordered = sorted(pooled(rounds, series))
    rank = max(1, math.ceil(len(ordered) * percent / 100))
    return Measurement(metric, rounded(ordered[rank - 1]), unit)


def pooled(rounds: Sequence[Round], series: str) -> list[float]:
    return [number for each in rounds for number in each[series]]


def rounded(number: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{number:.4g}")


def say(text: str) -> None:
    """Tell whoever watches; what was measured goes to standard output."""
    sys.stderr.write(text)
    sys.stderr.flush()
